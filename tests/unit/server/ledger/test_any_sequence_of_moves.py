"""Whatever is tried in whatever order, a ledger's history stays lawful."""

import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from server.ledger import Ledger
from tests.ledgers import live_at, submit
from unlearning.errors import Fenced, RequestError
from unlearning.gdpr import Amendment
from unlearning.requests import LEGAL_MOVES, Exclusions, Granularity, Status, Target

CLIENTS = ("1", "2")


class AnyoneDoesAnything(RuleBasedStateMachine):
    """People and live loops, current and replaced, act on one ledger at random."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._ledger = Ledger.open(f"sqlite:///{Path(self._directory.name) / 'ledger.db'}")
        self._now = datetime(2026, 3, 1, tzinfo=UTC)
        self._token = 0

    def teardown(self) -> None:
        self._ledger.close()
        self._directory.cleanup()

    def _tick(self) -> datetime:
        self._now += timedelta(seconds=1)
        return self._now

    @rule(client=st.sampled_from(CLIENTS), key=st.integers(1, 6))
    def submit(self, client: str, key: int) -> None:
        with suppress(RequestError):  # a refusal is lawful; the invariants say whether it left anything
            submit(self._ledger, Target(Granularity.CLIENT, client), key=str(key), now=self._tick())

    @rule(
        number=st.integers(1, 6),
        to=st.sampled_from(list(Status)),
        token_age=st.sampled_from([0, 0, 0, 1]),
        retryable=st.booleans(),
    )
    def move(self, number: int, to: Status, token_age: int, retryable: bool) -> None:
        token = self._token - token_age
        try:
            live_at(self._ledger, token, self._tick()).move(f"r-{number}", to, retryable=retryable)
        except RequestError:
            return
        except Fenced:
            assert token_age > 0
            return
        assert token_age == 0

    @rule(number=st.integers(1, 6), retry=st.booleans())
    def person(self, number: int, retry: bool) -> None:
        act = self._ledger.decisions.retry if retry else self._ledger.decisions.cancel
        with suppress(RequestError):  # as above
            act(f"r-{number}", by="ada", now=self._tick())

    @rule(
        number=st.integers(1, 6), ground=st.sampled_from(["", "a", "b"]), note=st.sampled_from(["one", "two"])
    )
    def amendment(self, number: int, ground: str, note: str) -> None:
        with suppress(RequestError):  # as above
            what = Amendment(ground=ground, note=note)
            self._ledger.decisions.amend(f"r-{number}", what=what, by="ada", now=self._tick())

    @rule(number=st.integers(1, 6), act=st.sampled_from(["extend", "hold", "release", "refuse", "redact"]))
    def operator(self, number: int, act: str) -> None:
        words: dict[str, object] = {} if act == "redact" else {"reason": "a reason"}
        if act == "extend":
            words["days"] = 3
        with suppress(RequestError):  # as above
            getattr(self._ledger.decisions, act)(f"r-{number}", by="ada", now=self._tick(), **words)

    @invariant()
    def nothing_begins_while_it_is_held(self) -> None:
        held: set[str] = set()
        for event in self._ledger.events.page():
            if event.kind in ("held", "hold-lifted"):
                (held.add if event.kind == "held" else held.discard)(event.request_id)
            if event.to_status in (Status.SCHEDULED, Status.UNLEARNING):
                assert event.request_id not in held

    @rule()
    def a_new_loop_takes_over(self) -> None:
        self._token = self._ledger.acquire_fence("loop", now=self._tick())

    @invariant()
    def every_history_is_a_chain_of_legal_moves_that_ends_in_the_status(self) -> None:
        for request in self._ledger.requests.select():
            status = Status.RECEIVED
            for event in self._ledger.events.page(request.id)[1:]:
                if event.kind != "moved":
                    continue
                assert event.from_status is status
                assert event.to_status in LEGAL_MOVES[status]
                status = event.to_status
            assert request.status is status

    @invariant()
    def the_events_commit_to_every_row(self) -> None:
        assert self._ledger.events.verify() == ""

    @invariant()
    def exactly_what_reached_recovering_is_excluded(self) -> None:
        requests = {request.id: request for request in self._ledger.requests.select()}
        forgotten = [
            requests[event.request_id].target
            for event in self._ledger.events.page()
            if event.to_status is Status.RECOVERING
        ]
        assert self._ledger.exclusions() == Exclusions().including(forgotten)


AnyoneDoesAnything.TestCase.settings = settings(max_examples=8, stateful_step_count=30, deadline=None)
TestAnyoneDoesAnything = AnyoneDoesAnything.TestCase
