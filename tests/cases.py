"""Parameters of tests of which most are slow."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

LONG = (pytest.mark.slow, pytest.mark.long)
"""The marks of a case that `make test-long` runs and no other command."""


def slow_but(quick: Collection[str], cases: Iterable[Any], marks: Any = pytest.mark.slow) -> list[Any]:
    """The cases; those whose name is not in `quick` are slow, or what `marks` says. A tuple begins with its name.

    For what each of many methods must do: a few that differ most show it in the default tests.
    """
    tuples = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*case, marks=() if case[0] in quick else marks) for case in tuples]
