"""Which values of a method's parameters anybody may choose who may file a request; the others are for operators.

A parameter has two ranges, both declared where it is: its bounds (`ge`, `le`, …), which hold for everybody, and a
narrower safe one, within which the method has been seen to do what it promises:

    learning_rate: Annotated[float, Safe(high=1)] = Field(default=0.01, gt=0, le=100, description="…")

A parameter without a mark is safe within its bounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Safe:
    """The safe range of a number, its ends included; None: the parameter's own bound."""

    low: float | None = None
    high: float | None = None

    def allows(self, value: Any, default: Any) -> bool:
        """Return whether anybody may choose `value`."""
        if value == default or value is None:
            return True
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def describe(self, default: Any) -> str:
        """Describe it in words, after "the safe range is"."""
        if self.low is None:
            return f"at most {self.high:g}"
        if self.high is None:
            return f"at least {self.low:g}"
        return f"{self.low:g} to {self.high:g}"

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Show it with the method's other facts."""
        return {**handler(schema), "safe": self.describe(None)}


@dataclass(frozen=True, slots=True)
class OperatorsOnly:
    """A parameter that operators alone set; everybody else has its default."""

    def allows(self, value: Any, default: Any) -> bool:
        """Return whether anybody may choose `value`."""
        return bool(value == default)

    def describe(self, default: Any) -> str:
        """Describe it in words, after "the safe range is"."""
        return f"its default ({'none' if default in (None, ()) else default})"

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Show it with the method's other facts."""
        return {**handler(schema), "safe": "the default"}


def beyond_safe_range(parameters: BaseModel) -> Iterator[str]:
    """Yield a phrase a value that only operators may choose: `unlearning_rate = 100 (the safe range is at most 10)`."""
    for name, field in type(parameters).model_fields.items():
        value = getattr(parameters, name)
        for mark in field.metadata:
            if isinstance(mark, Safe | OperatorsOnly) and not mark.allows(value, field.default):
                yield f"{name} = {value} (the safe range is {mark.describe(field.default)})"
