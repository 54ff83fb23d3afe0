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
def refuses(*settings: str) -> Iterator[pytest.ExceptionInfo[ConfigurationError]]:
    """Expect a ConfigurationError with a problem for each of these settings, in any order."""
    with pytest.raises(ConfigurationError) as caught:
        yield caught
    problems = caught.value.problems
    assert all(any(one.startswith(f"{name}: ") for one in problems) for name in settings), problems
