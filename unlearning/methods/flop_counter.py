"""Counts floating-point operations by PyTorch's own formulas, without PyTorch's compiler."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that adds up matrix products, convolutions and attention, forward and backward, in `total`.

    PyTorch's `FlopCounterMode` counts the same. At its first operation it imports PyTorch's compiler, to be left alone
    by it: 1.3 s of processor time and 70 MiB of a ServerApp that compiles nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that nothing here need be kept from the compiler; it is not there."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Run the operation and count it."""
        given = kwargs or {}
        result: Tensor | tuple[Tensor, ...] = func(*args, **given)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **given, out_val=result)
        return result
