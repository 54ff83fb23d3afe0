"""A SuperNode that is refused because its own lease has not ended is started again, and only that."""

import logging

from client.worker.node import LEASE_S, LET_IN_S, _until_let_in


class Runs:
    """SuperNodes that run for given times and end with given statuses, on a clock of their own."""

    def __init__(self, *ends: tuple[float, int]) -> None:
        self.ends = list(ends)
        self.now = 0.0

    def run_once(self) -> int:
        lived_s, status = self.ends.pop(0)
        self.now += lived_s
        return status

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def until_let_in(self) -> int:
        return _until_let_in(self.run_once, clock=lambda: self.now, sleep=self.sleep)


def test_it_is_tried_again_until_it_is_let_in(caplog):
    """With a sentence that says what Flower's does not; then its end is the program's."""
    runs = Runs((3.0, 1), (3.0, 1), (500.0, 0))
    with caplog.at_level(logging.WARNING):
        assert runs.until_let_in() == 0
    assert runs.ends == []
    assert len(caplog.messages) == 2
    assert "it was killed less than a minute ago" in caplog.messages[0]


def test_who_is_refused_for_longer_than_a_lease_ends():
    """It has another reason, and the service manager is told."""
    runs = Runs(*[(4.0, 1)] * 100)
    assert runs.until_let_in() == 1
    assert LEASE_S < runs.now < 2 * LEASE_S


def test_what_ends_after_it_was_let_in_is_not_started_again():
    """Nor what was asked to end."""
    assert Runs((LET_IN_S, 1)).until_let_in() == 1
    assert Runs((1.0, 0)).until_let_in() == 0
    assert Runs((1.0, -9)).until_let_in() == -9
