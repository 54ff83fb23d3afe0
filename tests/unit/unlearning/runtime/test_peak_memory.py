"""Peak memory: what a watch sees, what a client says of its work, and where it ends up."""

import json
import mmap
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Message

from server.report import canonical_json
from server.report.html_page import render_page
from server.report.report_data import ReportData
from strategies.exchange import Exchange
from strategies.messages import PEAK_MEMORY, TRAIN, arrays_content, compose, model_record, values_of
from tests.federation import InProcessFederation, client
from tests.unit.server.report.test_report import BARE, FULL
from unlearning.runtime import peak_memory
from unlearning.runtime.json_codec import to_plain
from unlearning.runtime.peak_memory import Memory, MemoryWatch, PeakMemory
from unlearning.tasks import make_task
from unlearning.training import Trained, initial_parameters, train

LARGE = 200_000_000
SLACK = 8_000_000
"""What else a process may take or give back between two looks, and how exactly the kernel counts."""


def touch(size_bytes: int) -> None:
    """Hold so many bytes resident, not only reserved, and give them back.

    A mapping of its own: an array may lie in memory that was freed before and is resident still.
    """
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        for page in range(0, size_bytes, mmap.PAGESIZE):
            area[page] = 1


def sets_back() -> bool:
    """Whether this kernel and container let a process set its own high-water mark back; some forbid or ignore it."""
    try:
        touch(LARGE)
        Path("/proc/self/clear_refs").write_text("5")
        told = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return told is not None and int(told[1]) * 1024 < resident_now() + SLACK
    except OSError:
        return False


def resident_now() -> int:
    """What this process holds now, which it held already before it gave back what it touched."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


exact = pytest.mark.skipif(
    not sets_back(), reason="/proc/self/clear_refs has no effect here: a peak is that since the process began"
)


def resident(watch: MemoryWatch) -> int:
    found = watch.peak().resident_bytes
    assert found is not None
    return found


@exact
def test_a_watch_sees_what_was_given_back_before_it_looks():
    """It is the peak that counts, not what is left at the end."""
    with MemoryWatch() as watch:
        before = resident(watch)
        touch(LARGE)
    assert resident(watch) - before > LARGE - SLACK


@exact
def test_a_watch_does_not_see_what_was_before_it():
    """Each piece of work has its own peak, though the process is the same."""
    with MemoryWatch() as first:
        touch(LARGE)
    with MemoryWatch() as second:
        pass
    assert resident(first) - resident(second) > LARGE - SLACK


@exact
def test_a_watch_keeps_its_peak_when_another_begins_and_ends_within_it():
    """Clients and server may share a process: setting back the kernel's mark takes nothing from the others."""
    with MemoryWatch() as outer:
        before = resident(outer)
        touch(LARGE)
        with MemoryWatch() as inner:
            pass
    assert resident(outer) - before > LARGE - SLACK
    assert resident(inner) - before < LARGE - SLACK


@exact
def test_a_watch_sees_the_peak_of_one_within_it():
    """What a client takes in the server's own process, the server's process has taken."""
    with MemoryWatch() as outer:
        before = resident(outer)
        with MemoryWatch():
            touch(LARGE)
    assert resident(outer) - before > LARGE - SLACK


def test_a_watch_that_was_never_entered_knows_nothing():
    """Unknown is not zero."""
    assert MemoryWatch().peak() == Memory()


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc/self/statm")
def test_where_the_mark_cannot_be_set_back_the_largest_since_the_beginning_is_told(monkeypatch, tmp_path):
    """As in a container that forbids it: never less than what the watch saw, and it never falls."""
    monkeypatch.setattr(peak_memory, "_CLEAR", tmp_path / "nowhere" / "none")
    with MemoryWatch() as first:
        touch(LARGE)
        at_least = resident_now() + LARGE
    with MemoryWatch() as second:
        pass
    assert resident(first) > at_least - SLACK
    assert resident(second) > resident(first) - SLACK


def test_where_the_kernel_tells_nothing_getrusage_does(monkeypatch, tmp_path):
    """Its figure never falls, so it is at least what Linux says."""
    with MemoryWatch() as told:
        pass
    monkeypatch.setattr(peak_memory, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(peak_memory, "_CLEAR", tmp_path / "nowhere" / "none")
    with MemoryWatch() as coarse:
        pass
    assert resident(coarse) >= resident(told) - SLACK


@pytest.mark.parametrize("value", [None, "1", 1.5, True, -1, 2**63, [3], {"resident_bytes": "many"}])
def test_what_is_no_number_of_bytes_is_unknown(value):
    """A client may send anything."""
    assert Memory.from_json({"resident_bytes": value, "device_bytes": 7}) == Memory(device_bytes=7)
    assert Memory.from_json(value) == Memory()


def test_memory_survives_its_way_through_json():
    """What a client measured is what the server reads."""
    measured = Memory(resident_bytes=5, device_bytes=None)
    assert Memory.from_json(json.loads(json.dumps(to_plain(measured)))) == measured


def test_a_phase_has_the_largest_of_all_its_exchanges():
    """Each of the four figures is the largest by itself, and unknown counts as nothing."""
    one = PeakMemory.of([Memory(resident_bytes=3, device_bytes=9), Memory(resident_bytes=5)], Memory())
    other = PeakMemory.of([Memory(resident_bytes=4, device_bytes=10)], Memory(resident_bytes=2))
    assert one == PeakMemory(client_bytes=5, client_device_bytes=9)
    assert one.joined(other) == PeakMemory(client_bytes=5, client_device_bytes=10, server_bytes=2)


def memory_of_training(federation: InProcessFederation, number: int) -> int:
    """What client 0 says that its training in a round took; the same round again would be answered from its memory."""
    model = initial_parameters(make_task(federation.settings.task()), seed=0)
    node = federation.node("0")
    message = compose(node, TRAIN, number, {}, model_record(model))
    reply = next(iter(federation.grid.send_and_receive([message])))
    found = Memory.from_json(values_of(reply.content)[PEAK_MEMORY]).resident_bytes
    assert found is not None
    return found


@exact
def test_a_client_that_takes_200_mb_more_says_so(federation, monkeypatch):
    """The figure is of the client's own work."""

    def wasteful(*arguments: object) -> Trained:
        touch(LARGE)
        return train(*arguments)  # type: ignore[arg-type]

    begun = federation()
    memory_of_training(begun, 1)  # once, so that nothing is left to load
    frugal = memory_of_training(begun, 2)
    monkeypatch.setattr("client.handlers.train", wasteful)
    assert memory_of_training(begun, 3) - frugal > LARGE - SLACK


def test_memory_ends_in_the_ledger_and_in_the_report(tmp_path):
    """Rounds, unlearning, recovery and measuring each say what a client and the server held at most."""
    federation = InProcessFederation(tmp_path, {"rounds": 1, "recovery-max-rounds": 1})
    federation.run()
    request = federation.file(client("1"))
    federation.run(rounds=2)
    rounds = federation.ledger.rounds()
    assert {record.kind for record in rounds} == {"training", "unlearning", "recovery"}
    report = json.loads((tmp_path / "reports" / request.id / "report.json").read_text())
    told = [record.metrics["peak_memory"] for record in rounds]
    told += [report[phase]["peak_memory"] for phase in ("unlearning", "recovery", "measuring")]
    for figures in told:
        # one process: the server's step holds what its clients hold within it
        assert LARGE / 4 < figures["client_bytes"] <= figures["server_bytes"]
    federation.close()


def test_a_client_of_an_earlier_version_is_unknown():
    """An answer that says nothing of memory leaves the figure open."""
    message = Message(arrays_content({}, {}), dst_node_id=1, message_type=TRAIN)
    done = Exchange(messages={"0": message}, values={"0": {}})
    assert done.client_memory == {"0": Memory()}


def row(data: ReportData) -> list[str]:
    """The cells of the unlearning phase in the page's table of costs."""
    cells = render_page(data).split('<th scope="row">Unlearning</th>')[1].split("</tr>")[0]
    return [re.sub("<[^>]*>", "", cell).strip() for cell in cells.split("</td>")][:-1]


def test_unknown_memory_is_shown_as_unknown():
    """The page never shows a missing figure as zero."""
    assert json.loads(canonical_json(BARE))["unlearning"]["peak_memory"]["client_bytes"] is None
    assert row(BARE)[-2:] == ["unknown", "unknown"]


def test_memory_is_shown_with_that_of_a_gpu():
    """Both matter to whoever provides the machine."""
    peak = PeakMemory(client_bytes=412_000_000, client_device_bytes=1_200_000_000, server_bytes=650_000_000)
    shown = row(replace(FULL, unlearning=replace(FULL.unlearning, peak_memory=peak)))
    assert shown[-2:] == ["412.0\u202fMB, 1.2\u202fGB on the GPU", "650.0\u202fMB"]


def test_memory_on_gpus_is_that_of_the_fullest_device(monkeypatch):
    """Each device's mark is set back when a watch begins, and none is looked at before CUDA is in use."""
    marks: dict[int, int] = {}
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: bool(marks))
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(marks))
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda device: marks[device])
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda device: marks.update({device: 0}))
    with MemoryWatch() as without:
        pass
    assert without.peak().device_bytes is None
    marks |= {0: 900, 1: 900}
    with MemoryWatch() as watch:
        marks |= {0: 30, 1: 70}
    assert watch.peak().device_bytes == 70
