"""The processes of sites on this machine by what they are, with their memory and processor time."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

import psutil

from benchmarks.deployment import SUPERNODE, LocalDeployment
from unlearning.errors import DeploymentError

SITE = ("SuperNode", "SuperExec")
"""What each site has whether it computes or not, by stock Flower too."""

Census = Mapping[str, Sequence[psutil.Process]]
"""The processes of each kind: those of `SITE`, and `message`."""


def census(federation: LocalDeployment) -> Census:
    """Return the living processes of all sites of a deployment."""
    found: defaultdict[str, list[psutil.Process]] = defaultdict(list)
    for name in federation.names:
        if not name.startswith(SUPERNODE):
            continue
        with suppress(psutil.Error, DeploymentError):  # it has ended, or was not started
            leader = psutil.Process(federation.group(name).pid)
            found["SuperNode"].append(leader)
            for process in leader.children(recursive=True):
                with suppress(psutil.Error):
                    found[_kind(process.cmdline())].append(process)
    return found


def _kind(command: Sequence[str]) -> str:
    words = " ".join(command[:4])
    if "flwr-clientapp" in words:
        return "message"
    return "SuperExec" if "flower-superexec" in words else "ended"  # that waits to be collected has no words


def processor_seconds(found: Census) -> dict[str, float]:
    """Return the processor seconds that the living processes of each kind have taken since they began."""
    totals: defaultdict[str, float] = defaultdict(float)
    for kind, processes in found.items():
        for process in processes:
            with suppress(psutil.Error):
                times = process.cpu_times()
                totals[kind] += times.user + times.system
    return totals


def sizes_mib(found: Census, what: Literal["pss", "uss"] = "pss") -> dict[str, list[float]]:
    """Return the size of each process, MiB, by kind: proportional, or of the pages that it has for itself."""
    sizes: defaultdict[str, list[float]] = defaultdict(list)
    for kind, processes in found.items():
        for process in processes:
            with suppress(psutil.Error):
                sizes[kind].append(getattr(process.memory_full_info(), what) / 2**20)
    return {kind: values for kind, values in sizes.items() if values and kind != "ended"}


def memory(found: Census) -> dict[str, float]:
    """Return the MiB of all processes of each kind together; the parts add up."""
    return {kind: sum(sizes) for kind, sizes in sizes_mib(found).items()}


def at_rest(federation: LocalDeployment, idle_s: float) -> dict[str, float]:
    """Return the processor seconds a minute of all processes of each kind, and `others`: the rest of the machine's."""
    before, all_before = processor_seconds(census(federation)), _busy()
    time.sleep(idle_s)
    after, all_after = processor_seconds(census(federation)), _busy()
    found = {kind: (after[kind] - before.get(kind, 0.0)) * 60 / idle_s for kind in after}
    return {**found, "others": (all_after - all_before) * 60 / idle_s - sum(found.values())}


def _busy() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))
