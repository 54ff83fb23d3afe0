"""What a test says of an error: its class, its code and its fields, and not its wording."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from unlearning.errors import ConfigurationError, FlowerUnlearningError

E = TypeVar("E", bound=FlowerUnlearningError)


@contextmanager
def raises(error: type[E], code: str = "", **fields: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect `error` with this code and, among its fields, these values."""
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.code == code, f"code {caught.value.code!r} of: {caught.value}"
    assert {name: caught.value.fields.get(name) for name in fields} == fields


@contextmanager
def wrong_setting(*names: str) -> Iterator[None]:
    """Expect a `ConfigurationError` with one problem for each of these settings."""
    with pytest.raises(ConfigurationError) as caught:
        yield
    problems = caught.value.problems
    assert len(problems) == len(names), problems
    assert all(one.startswith(name) for one, name in zip(sorted(problems), sorted(names), strict=True)), (
        problems
    )
