"""Parameters of tests of which most are slow."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(quick: Collection[str], cases: Iterable[Any]) -> list[Any]:
    """The cases; those whose name is not in `quick` are slow. A tuple begins with its name.

    For what each of many methods must do: a few that differ most show it in the default tests.
    """
    return [_slow_unless(quick, case if isinstance(case, tuple) else (case,)) for case in cases]


def _slow_unless(quick: Collection[str], case: tuple[Any, ...]) -> Any:
    return pytest.param(*case, marks=() if case[0] in quick else pytest.mark.slow)
