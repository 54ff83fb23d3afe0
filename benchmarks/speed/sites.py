"""What a site costs beside what it computes: processor time at rest, memory, and many SuperNodes on one host.

    python -m benchmarks.speed.sites --output docs/results/sites

Real processes on this machine. At rest: processor seconds a node a minute. Memory: proportional set sizes (PSS, Linux:
a page that several processes share counts by its part for each), so that the parts add up. Many: rounds a minute of
stock Flower, of messages, and of sessions, one after the other on the same SuperNodes.
"""

import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from benchmarks.deployment import LocalDeployment, supernode
from benchmarks.speed.rounds import Plan, write_app
from benchmarks.speed.site_processes import SITE, at_rest, census, memory, processor_seconds, sizes_mib
from benchmarks.tables import table, write
from server.operations.flower_control import ConfigValue
from unlearning.errors import DeploymentError

app = typer.Typer(add_completion=False)
LIMIT_S = 600.0
MESSAGES: Mapping[str, ConfigValue] = {"session-address": ""}
SESSIONS: Mapping[str, ConfigValue] = {"transport": "session"}
ARMS: Mapping[str, tuple[str, Mapping[str, ConfigValue]]] = {
    "messages": ("ours", MESSAGES),
    "sessions": ("ours", SESSIONS),
    "stock Flower": ("stock", MESSAGES),
}
"""The kind of round that is timed in each arm, and what the run is told."""
OWN = "message, its own pages"
POLLS_S = {"stock": "1.0", "units": "3", "quick": "0.2"}
"""How often SuperExec looks for a message: Flower's own interval, that of our units and containers, and the one that
they speak of for rounds over messages."""


@dataclass(frozen=True, slots=True)
class Host:
    """A federation of SuperNodes on this machine, whose runs time rounds."""

    federation: LocalDeployment
    directory: Path
    sampled: dict[str, float] = field(default_factory=dict)

    @property
    def num_clients(self) -> int:
        """How many SuperNodes there are."""
        return self.federation.layout.num_clients

    def settle(self) -> None:
        """Wait until all SuperNodes are known to the SuperLink, and then, a minute at most, until they are at rest."""
        logs = [supernode(client) for client in range(self.num_clients)]
        self.federation.wait_until(
            lambda: all("SuperNode ID:" in self.federation.group(name).log_text() for name in logs),
            LIMIT_S,
            "the SuperNodes have connected",
        )
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            before = sum(processor_seconds(census(self.federation)).values())
            time.sleep(3.0)
            if (
                sum(processor_seconds(census(self.federation)).values()) - before
                < 0.3 + 0.15 * self.num_clients
            ):
                return

    def time_rounds(self, arm: str, *, repeats: int, warm_up: bool, rest_s: float = 0.0) -> dict[str, Any]:
        """Run an arm's rounds and, if asked, watch the sites at rest before the run ends.

        `sampled` keeps the most memory that a process of each kind took.
        """
        kind, settings = ARMS[arm]
        result = self.directory / "seconds.json"
        result.unlink(missing_ok=True)
        plan = Plan(
            output=result,
            kinds=(kind,),
            repeats=repeats,
            warm_up=warm_up,
            linger_s=rest_s + 5.0 if rest_s else 0.0,
        )
        plan.write(self.directory / "plan.json")
        run = self.federation.submit_run(settings)
        self.federation.wait_until(self._sampling(result.exists), LIMIT_S, f"{arm}: rounds", poll_s=0.5)
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if rest_s:
            found["rest"] = at_rest(self.federation, rest_s)
        self.federation.wait_until_finished(run, LIMIT_S)
        return {"seconds": found[kind], "processor": found["processor"][kind], "rest": found.get("rest")}

    def _sampling(self, predicate: Callable[[], bool]) -> Callable[[], bool]:
        """Return `predicate`, which now also looks at the memory of messages' processes; with few SuperNodes only."""

        def look() -> bool:
            if self.num_clients <= 5:  # a look costs milliseconds a process
                seen = census(self.federation)
                for kind, sizes in sizes_mib(seen).items():
                    self.sampled[kind] = max(self.sampled.get(kind, 0.0), *sizes)
                own = sizes_mib({OWN: seen.get("message", ())}, "uss").get(OWN, [])
                self.sampled[OWN] = max(self.sampled.get(OWN, 0.0), *own, 0.0)
            return predicate()

        return look


@contextmanager
def host(num_clients: int, poll: str = "quick") -> Iterator[Host]:
    """Start SuperNodes, and give them when they are at rest; `poll` is one of `POLLS_S`."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with LocalDeployment(
            directory / "federation",
            num_clients=num_clients,
            app_dir=write_app(directory / "app"),
            run_config={
                "dataset": "digits",
                "model": "logistic",
                "num-clients": num_clients,
                "wait-timeout-s": LIMIT_S,
                "round-timeout-s": LIMIT_S,
            },
            with_sessions=True,
            environment={
                "BENCH_PLAN": str(directory / "plan.json"),
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLLS_S[poll],
            },
        ) as federation:
            made = Host(federation, directory)
            made.settle()
            yield made


@app.command()
def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    clients: Annotated[int, typer.Option(help="SuperNodes of the small host.")] = 3,
    many: Annotated[int, typer.Option(help="SuperNodes of the large one; fewer where memory is short.")] = 30,
    idle_s: Annotated[float, typer.Option(help="How long each is watched at rest.")] = 45.0,
    repeats: Annotated[int, typer.Option(help="Rounds that count, of each arm on the large host.")] = 3,
) -> None:
    """Measure sites at rest, their memory, and rounds with many of them."""
    load, busy = os.getloadavg(), psutil.cpu_percent(5.0)
    found: dict[str, Any] = {"load": load, "busy_percent_before": busy, "clients": clients}
    with host(clients, "units") as small:
        found |= _watch(small, idle_s)
    for poll in ("stock", "quick"):
        with host(clients, poll) as small:
            found[f"rest, {poll}"] = at_rest(small.federation, idle_s)
    found["many"] = _as_many_as_fit(many, found)
    with host(found["many"], "stock") as large:
        found["memory, many"] = memory(census(large.federation))
        found["rest, many"] = at_rest(large.federation, idle_s / 2)
        found["arms"] = {arm: _time_many(large, arm, repeats) for arm in ARMS}
    write(output, _page(found), found)


def _time_many(large: Host, arm: str, repeats: int) -> dict[str, Any]:
    """Time rounds of an arm; with stock Flower two at most and no other before, for they take minutes.

    Where not one was over in time, as when so many processes start at once that Flower gives up their tasks, none is;
    stock Flower comes last, so that nothing of it is left beside another arm.
    """
    is_stock = ARMS[arm][0] == "stock"
    try:
        return large.time_rounds(arm, repeats=min(repeats, 2) if is_stock else repeats, warm_up=not is_stock)
    except DeploymentError as exc:
        print(f"{arm}: {str(exc).partition(chr(10))[0]}")
        return {"seconds": [], "processor": []}


def _watch(small: Host, idle_s: float) -> dict[str, Any]:
    """Return what a few SuperNodes take at rest and in rounds, and one of them alone."""
    federation, found = small.federation, {}
    found["memory"] = memory(census(federation))
    found["rest"] = at_rest(federation, idle_s)
    for arm in ("stock Flower", "messages"):
        small.time_rounds(arm, repeats=1, warm_up=False)
    found["rest, sessions"] = small.time_rounds("sessions", repeats=1, warm_up=False, rest_s=idle_s)["rest"]
    found["memory of a message"] = dict(small.sampled)
    for client in range(1, small.num_clients):
        federation.kill(supernode(client))
    small.settle()
    found["memory, one"] = memory(census(federation))
    return found


def _as_many_as_fit(many: int, found: Mapping[str, Any]) -> int:
    """Return how many SuperNodes this machine's memory holds while each has a message's process."""
    each = sum(found["memory"][kind] for kind in SITE) / found["clients"]
    each += found["memory of a message"][OWN]
    return max(1, min(many, int(0.8 * psutil.virtual_memory().available / 2**20 / each)))


def _page(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of the page."""
    own, idle = found["rest, stock"], found["rest"]
    nodes, many = found["clients"], found["many"]
    rests = [
        ("stock Flower as it comes", own, nodes, SITE),
        (f"as our units set it: a look every {POLLS_S['units']} s", idle, nodes, SITE),
        ("the same, attending a session", found["rest, sessions"], nodes, (*SITE, "message")),
        (f"a look every {POLLS_S['quick']} s", found["rest, quick"], nodes, SITE),
        (f"{many} SuperNodes, a look every {POLLS_S['stock']} s", found["rest, many"], many, SITE),
    ]
    base = sum(own.get(kind, 0.0) for kind in SITE) / nodes
    rows = []
    for name, rest, count, kinds in rests:
        cost = sum(rest.get(kind, 0.0) for kind in kinds) / count
        rows.append([name, f"{cost:.2f}", f"{cost / base:.2f}", f"{rest['others']:.1f}"])
    headings = ["at rest", "processor s a node a minute", "of stock Flower", "others' s a minute"]
    lines = [
        "# What a site costs",
        "",
        *table(headings, rows),
        "",
        *_memory_lines(found),
        *_round_lines(found),
    ]
    load = ", ".join(f"{value:.1f}" for value in found["load"])
    return [
        *lines,
        f"{os.cpu_count()} cores, {platform.machine()}. When it began the load averages were {load} and the machine "
        f"was {found['busy_percent_before']:.0f} % busy with other things; *others* is what else ran beside a row.",
    ]


def _memory_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the table of memory."""
    rows = []
    for name, count in (("memory, one", 1), ("memory", found["clients"]), ("memory, many", found["many"])):
        sizes = found[name]
        parts = [sizes[kind] / count for kind in SITE]
        rows.append([f"{count} SuperNode(s)", *(f"{part:.0f}" for part in parts), f"{sum(parts):.0f}"])
    headings = ["PSS, MiB", "a SuperNode", "its SuperExec", "a site"]
    messages = found["memory of a message"]
    said = ", ".join(f"{kind} {size:.0f}" for kind, size in sorted(messages.items()) if "message" in kind)
    return [
        *table(headings, rows),
        "",
        f"The most that a message's process took in a round, MiB: {said}.",
        "",
    ]


def _round_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the table of rounds with many SuperNodes."""
    arms: Mapping[str, Any] = found["arms"]
    timed = {name: one for name, one in arms.items() if one["seconds"]}
    base = statistics.median(timed["stock Flower"]["seconds"]) if "stock Flower" in timed else math.nan
    rows: list[list[object]] = [[name, *["no round in time"] * 4, 0] for name in arms if name not in timed]
    for name, one in timed.items():
        seconds = statistics.median(one["seconds"])
        cost = statistics.median(one["processor"]) / found["many"]
        rows.append(
            [
                *(
                    name,
                    f"{seconds:.2f}",
                    "–" if math.isnan(base) else f"{seconds / base:.3f}",
                    f"{60 / seconds:.2f}",
                    f"{cost:.2f}",
                ),
                len(one["seconds"]),
            ]
        )
    headings = [
        f"{found['many']} SuperNodes on this host, a look every {POLLS_S['stock']} s",
        "training round, s",
        "of stock",
        "rounds a minute",
    ]
    lines = table([*headings, "processor s a message", "rounds timed"], rows)
    return [*lines, "", "Logistic regression on digits. Processor seconds are the whole machine's.", ""]


if __name__ == "__main__":
    app()
