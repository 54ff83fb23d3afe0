"""Kills a federation of one process at a place where it may be killed, and starts it again."""

import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.federation.state import FederationState
from tests.federation import InProcessFederation


class Killed(BaseException):
    """The process is gone."""


class Killer:
    """Counts the places passed, before and after each step, and kills at the one of number `kill_at`.

    steps: functions by owner, a class or a module, and name.
    """

    def __init__(self, patch: pytest.MonkeyPatch, steps: Sequence[tuple[Any, str]]) -> None:
        self.passed = 0
        self.kill_at: int | None = None
        self._look: Callable[[int], None] = lambda _place: None
        for owner, name in steps:
            patch.setattr(owner, name, self._dangerous(getattr(owner, name)))

    def arm(self, kill_at: int) -> None:
        """Kill at the place that is `kill_at` away."""
        self.passed, self.kill_at = 0, kill_at

    def disarm(self) -> None:
        """Kill no more."""
        self.kill_at = None

    def survive(self, one: InProcessFederation, kill_at: int) -> FederationState:
        """Run `one`, kill it at a place of its run, start it again and run it to its end."""
        self.arm(kill_at)
        with pytest.raises(Killed):
            one.run()
        self.disarm()
        one.new_grid()
        return one.run()

    def copy(self, one: InProcessFederation, places: Collection[int]) -> dict[int, Path]:
        """Run `one` to its end; its directory by place, as a kill at that place would leave it.

        Not even an exception's `finally` runs there, and no run begins from the start again.
        """
        copies: dict[int, Path] = {}

        def look(place: int) -> None:
            if place in places:
                copies[place] = one.directory.with_name(f"killed-{place}")
                shutil.copytree(one.directory, copies[place])

        self.passed, self._look = 0, look
        one.run()
        self._look = lambda _place: None
        return copies

    def _dangerous(self, original: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            self._maybe_die()
            result = original(*args, **kwargs)
            self._maybe_die()
            return result

        return wrapped

    def _maybe_die(self) -> None:
        self.passed += 1
        self._look(self.passed)
        if self.passed == self.kill_at:
            raise Killed
