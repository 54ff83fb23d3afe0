"""Peak memory: what a watch sees, what a client says of its work, and where it ends up."""

import json
import mmap
import re
import threading
from dataclasses import replace

import pytest

from server.report import canonical_json
from server.report.html_page import render_page
from server.report.report_data import ReportData
from strategies.messages import PEAK_MEMORY, TRAIN, compose, model_record, values_of
from tests.federation import InProcessFederation, client
from tests.unit.server.report.test_report import BARE, FULL
from unlearning.runtime import peak_memory
from unlearning.runtime.peak_memory import Memory, MemoryWatch, PeakMemory
from unlearning.tasks import make_task
from unlearning.training import Trained, initial_parameters, train

LARGE = 200_000_000


def resident(watch: MemoryWatch) -> int:
    found = watch.peak().resident_bytes
    assert found is not None
    return found


def test_a_watch_sees_what_was_given_back_before_it_ends():
    """It is the peak that counts, not what is left at the end."""
    with MemoryWatch() as watch:
        before = resident(watch)
        with mmap.mmap(-1, LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
            for page in range(0, LARGE, mmap.PAGESIZE):
                area[page] = 1
            resident(watch)
    assert resident(watch) - before > LARGE / 2  # the kernel may take pages of others back meanwhile


class Process:
    """A process that holds what the test says, and says when it was looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = Memory(resident_bytes=1)
        self.looked = threading.Event()
        monkeypatch.setattr(peak_memory, "memory_now", self._now)
        monkeypatch.setattr(peak_memory, "_high_water_mark", lambda: 0)

    def _now(self) -> Memory:
        if self.held.resident_bytes == LARGE:
            self.looked.set()
        return self.held

    def takes_much(self) -> None:
        """Hold much until somebody has looked."""
        self.held = Memory(resident_bytes=LARGE)
        assert self.looked.wait(10)
        self.held = Memory(resident_bytes=1)


@pytest.fixture
def process(monkeypatch) -> Process:
    return Process(monkeypatch)


def test_a_watch_looks_by_itself_and_does_not_see_what_was_before_it(process):
    """Each piece of work has its own peak, though the process is the same."""
    with MemoryWatch() as first:
        process.takes_much()
    with MemoryWatch() as second:
        pass
    assert (resident(first), resident(second)) == (LARGE, 1)


def test_watches_within_each_other_have_the_peak_of_their_own_time(process):
    """Clients and server may share a process."""
    with MemoryWatch() as outer:
        process.held = Memory(resident_bytes=7)
        resident(outer)
        process.held = Memory(resident_bytes=1)
        with MemoryWatch() as inner:
            pass
    assert (resident(outer), resident(inner)) == (7, 1)


def test_a_new_high_water_mark_counts_though_it_was_reached_between_two_looks(process, monkeypatch):
    """One that was reached before does not."""
    monkeypatch.setattr(peak_memory, "_high_water_mark", lambda: 5)
    with MemoryWatch() as watch:
        assert resident(watch) == 1
        monkeypatch.setattr(peak_memory, "_high_water_mark", lambda: 9)
    assert resident(watch) == 9


def test_a_watch_that_was_never_entered_knows_nothing():
    """Unknown is not zero."""
    assert MemoryWatch().peak() == Memory()


@pytest.mark.parametrize("value", [None, "1", 1.5, True, -1, 2**63, [3], {"resident_bytes": "many"}])
def test_what_is_no_number_of_bytes_is_unknown(value):
    """A client may send anything."""
    assert Memory.from_json({"resident_bytes": value, "device_bytes": 7}) == Memory(device_bytes=7)
    assert Memory.from_json(value) == Memory()


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


def test_a_client_says_what_its_own_work_took(federation, process, monkeypatch):
    """Its next answer has a figure of its own."""

    def wasteful(*arguments: object, **kept: object) -> Trained:
        process.takes_much()
        return train(*arguments, **kept)  # type: ignore[arg-type]

    begun = federation()
    with monkeypatch.context() as patch:
        patch.setattr("unlearning.methods.preparation.train", wasteful)
        assert memory_of_training(begun, 1) == LARGE
    assert memory_of_training(begun, 2) == 1


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
        assert min(figures["client_bytes"], figures["server_bytes"]) > LARGE / 4
    federation.close()


def row(data: ReportData) -> list[str]:
    """The cells of the unlearning phase in the page's table of costs."""
    cells = render_page(data).split('<th scope="row">Unlearning</th>')[1].split("</tr>")[0]
    return [re.sub("<[^>]*>", "", cell).strip() for cell in cells.split("</td>")][:-1]


def test_unknown_memory_is_shown_as_unknown():
    """The page never shows a missing figure as zero."""
    assert json.loads(canonical_json(BARE))["unlearning"]["peak_memory"]["client_bytes"] is None
    assert row(BARE)[-2:] == ["unknown", "unknown"]


def test_memory_is_shown_with_that_of_a_gpu():
    """Both matter to those who provide the machine."""
    peak = PeakMemory(client_bytes=412_000_000, client_device_bytes=1_200_000_000, server_bytes=650_000_000)
    shown = row(replace(FULL, unlearning=replace(FULL.unlearning, peak_memory=peak)))
    assert shown[-2:] == ["412.0\u202fMB, 1.2\u202fGB on the GPU", "650.0\u202fMB"]


def test_memory_on_gpus_is_that_of_the_fullest_device(monkeypatch):
    """None is looked at before CUDA is in use."""
    held: dict[int, int] = {}
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: bool(held))
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(held))
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: held[device])
    with MemoryWatch() as without:
        pass
    assert without.peak().device_bytes is None
    with MemoryWatch() as watch:
        held |= {0: 30, 1: 70}
        watch.peak()
        held |= {0: 10, 1: 10}
    assert watch.peak().device_bytes == 70
