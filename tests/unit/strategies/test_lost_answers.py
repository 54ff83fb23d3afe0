"""Fetching answers: of one of which only the head arrives nobody waits for the rest, and it is asked for again."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode
from flwr.simulation.run_simulation import InMemoryGrid as FlowersGrid

from strategies import exchange as exchanges
from strategies.exchange import MAX_REPEATS, NO_ANSWER, Exchange, exchange
from strategies.fetching import TURN_S, is_in_memory
from strategies.in_process_grid import InProcessGrid
from strategies.messages import TRAIN, arrays_content, compose, model_record, named_arrays
from tests.waiting import WAIT_S


class LosingGrid(InProcessGrid):
    """Of the answers numbered in `lost` (in order of asking) only the head comes: a look at one waits for `found`."""

    def __init__(self, lost: Iterable[int], num_clients: int = 3) -> None:
        self.answered: list[int] = []
        super().__init__(self._app, [{} for _ in range(num_clients)], {})
        self.lost = {f"message-{number}" for number in lost}
        self.found = threading.Event()

    def _app(self, message: Message, context: Context) -> Message:
        self.answered.append(context.node_id)
        return Message(arrays_content({"number": np.array(len(self.answered))}, {}), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        if self.lost.intersection(ids):
            self.found.wait(20)
        return super().pull_messages(ids)


class NewerGrid(LosingGrid):
    """As Flower 1.43 declares it: messages may be asked for by their own ids too; answers are by what they answer."""

    def pull_messages(
        self, reply_to_message_ids: Iterable[str] | None = None, *, message_ids: Iterable[str] | None = None
    ) -> Iterable[Message]:
        assert message_ids is None, "answers are asked for"
        return super().pull_messages(reply_to_message_ids or ())


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    monkeypatch.setattr(exchanges, "LOST_S", 0.2)
    monkeypatch.setattr("strategies.fetching._LOOK_S", 0.05)


def ask(grid: InProcessGrid, timeout_s: float = 20.0) -> Exchange:
    """One exchange with every client, named a, b and c."""
    record = model_record(np.zeros(3, dtype=np.float32))
    messages = {
        name: compose(node_id, TRAIN, 7, {"training": {}}, record)
        for name, node_id in zip("abc", grid.get_node_ids(), strict=False)
    }
    return exchange(grid, messages, timeout_s=timeout_s)


def test_answers_are_fetched_by_what_they_answer():
    """Whatever the Grid's argument is called."""
    assert sorted(ask(NewerGrid([])).messages) == ["a", "b", "c"]


def test_a_lost_answer_is_asked_for_again_with_the_same_message():
    """Under the same round, to the same node, with the same content; the answer counts once, the others' too."""
    grid = LosingGrid([2])
    done = ask(grid)
    grid.found.set()
    assert sorted(done.messages) == ["a", "b", "c"]
    assert (done.asked_again, done.failures, done.refused) == ({"b": 1}, {}, {})
    first, again = (message for message in grid.sent if message.metadata.dst_node_id == 1002)
    assert first.metadata.message_id != again.metadata.message_id
    assert first.metadata.group_id == again.metadata.group_id == "7"
    assert first.content == again.content
    assert int(named_arrays(done.replies["b"])["number"]) == 4


def test_the_first_answer_counts_where_it_comes_after_all():
    """What was thought lost arrives while the second is on its way; nothing is counted twice."""
    grid = LosingGrid([1, 2, 3])
    grid.lost |= {f"message-{number}" for number in range(4, 7)}
    threading.Timer(0.8, grid.found.set).start()
    done = ask(grid)
    assert sorted(done.messages) == ["a", "b", "c"]
    assert sorted(done.asked_again) == ["a", "b", "c"]
    assert done.refused == {}
    assert {int(named_arrays(reply)["number"]) for reply in done.replies.values()} <= set(range(1, 10))


def test_two_answers_of_a_client_that_was_asked_again_are_no_refusal(monkeypatch):
    """Both come at the same look: the first counts, and an honest client is not written down for the second."""

    class AtOnce(LosingGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            ids = list(message_ids)
            if "message-2" in ids:
                self.found.set()
                for look in threading.enumerate():  # the one at the first answer ends, too
                    if look.name == "answers" and look is not threading.current_thread():
                        look.join(20)
            return super().pull_messages(ids)

    grid = AtOnce([1], num_clients=1)
    monkeypatch.setattr("strategies.fetching._LOOK_S", 0.5)
    done = ask(grid)
    assert (list(done.messages), done.asked_again, done.refused) == (["a"], {"a": 1}, {})
    assert int(named_arrays(done.replies["a"])["number"]) == 1


def test_it_is_asked_so_often_and_no_more():
    """Then Flower's own word that it is lost makes a failure that says so."""

    class Never(LosingGrid):
        def _app(self, message: Message, context: Context) -> Message:
            answer = super()._app(message, context)
            error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "objects are unavailable")
            return Message(error, reply_to=message) if context.node_id == 1002 else answer

    grid = Never([])
    done = ask(grid)
    assert sorted(done.messages) == ["a", "c"]
    assert done.asked_again == {"b": MAX_REPEATS}
    assert "lost on the way" in done.failures["b"].reason
    assert grid.answered.count(1002) == 1 + MAX_REPEATS


def test_a_deadline_holds_while_an_answer_is_waited_for():
    """Flower itself would wait three minutes."""
    grid = LosingGrid([2, 4, 5])
    started = time.monotonic()
    done = ask(grid, timeout_s=1.5)
    assert time.monotonic() - started < 5
    grid.found.set()
    assert sorted(done.messages) == ["a", "c"]
    assert done.failures["b"].reason.startswith(NO_ANSWER)


def test_a_client_that_is_offline_is_not_asked_again(monkeypatch):
    """Nobody would answer."""
    grid = LosingGrid([2])
    monkeypatch.setattr(grid, "get_nodes", list)
    done = ask(grid, timeout_s=1.0)
    grid.found.set()
    assert done.asked_again == {}
    assert sorted(done.failures) == ["b"]


def test_a_superlink_that_is_away_loses_no_answer(monkeypatch):
    """While it does not even say who is online, nobody is asked again."""
    grid = LosingGrid([1, 2, 3])
    monkeypatch.setattr("strategies.fetching.SLOW_S", 0.0)  # whatever time it takes is long
    original = grid.get_nodes

    def slow() -> Any:
        grid.found.set()
        return original()

    monkeypatch.setattr(grid, "get_nodes", slow)
    done = ask(grid)
    assert sorted(done.messages) == ["a", "b", "c"]
    assert done.asked_again == {}


def test_a_process_ends_though_a_look_is_under_way():
    """A ServerApp that is stopped does not wait for Flower, which tries again and again."""
    program = (
        "import time\n"
        "from strategies.fetching import Fetches\n"
        "class Stuck:\n"
        "    def pull_messages(self, ids):\n"
        "        time.sleep(60)\n"
        "assert list(Fetches(Stuck()).pull(['a'])) == []\n"
        "print('ends', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert done.stdout == "ends\n"


def test_a_simulations_answers_are_fetched_all_at_once() -> None:
    """Each look takes the lock under which Flower searches for the next message; elsewhere each answer is by itself.

    There are no threads of looks, which would wait for the search and for each other.
    """
    looks: list[list[str]] = []
    threads: set[int] = set()

    class InMemoryGrid(LosingGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            looks.append(list(message_ids))
            threads.add(threading.get_ident())
            return super().pull_messages(looks[-1])

    assert is_in_memory(object.__new__(FlowersGrid))
    ask(InMemoryGrid(lost=()))
    assert max(map(len, looks)) == 3
    assert threads == {threading.get_ident()}


def test_threads_of_a_simulation_take_short_turns_during_an_exchange() -> None:
    """Flower's search never pauses, and each answer waits for Python's lock several times."""
    before, turns = sys.getswitchinterval(), []

    class Noting(LosingGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            turns.append(sys.getswitchinterval())
            return super().pull_messages(message_ids)

    class InMemoryGrid(Noting):
        pass

    ask(InMemoryGrid(lost=()))
    assert max(turns) == pytest.approx(TURN_S)
    assert sys.getswitchinterval() == before
    turns.clear()
    ask(Noting(lost=()))
    assert {*turns} == {before}


def test_numbered_clients_are_sent_to_in_the_order_of_their_numbers() -> None:
    """Flower's simulation looks for messages in this order, through all that were sent before."""
    nodes: list[int] = []

    class Noting(InProcessGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            sent = list(messages)
            nodes.extend(message.metadata.dst_node_id for message in sent)
            return super().push_messages(sent)

    def app(message: Message, _: Context) -> Message:
        return Message(arrays_content({}, {}), reply_to=message)

    grid = Noting(app, [{} for _ in range(11)], {})
    record = model_record(np.zeros(3, dtype=np.float32))
    clients = dict(sorted((str(place), node) for place, node in enumerate(grid.get_node_ids())))
    messages = {client: compose(node, TRAIN, 1, {}, record) for client, node in clients.items()}
    exchange(grid, messages, timeout_s=20)
    assert nodes == sorted(nodes)
    assert [*clients.values()] != nodes
