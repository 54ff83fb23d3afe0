"""Optimisers of local training, and what they have gathered (momentum, Adam's moments) from round to round.

They are torch's functions without its classes: the first use of a class imports torch's compiler, 1.3 s of processor
time and 80 MB in every process, and a deployment starts one for each message.

What was gathered was computed from the client's examples, so it stays at the client and is erased with whatever methods
keep there. An optimiser goes on with that of the round directly before only. So a client that left a round out begins
again, and all do after a deletion, whose exchanges are rounds too.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from unlearning.runtime.stores import Arrays, Store, keep_newest

OPTIMIZER = "optimizer"
"""The name of the store at a client."""


class Sgd:
    """`torch.optim.SGD`, bit for bit.

    state: the momentum by the weight's position, named as torch's class does. is_plain: without momentum and decay.
    """

    def __init__(
        self, weights: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float, maximize: bool
    ) -> None:
        self.weights = list(weights)
        self.state: dict[int, dict[str, Tensor]] = {}
        self._rates = lr, momentum, weight_decay
        self._maximize = maximize
        self.is_plain = not momentum and not weight_decay

    @torch.no_grad()
    def step(self) -> None:
        """Change the weights by their gradients, which are used up."""
        gradients = _gradients(self.weights)
        buffers = [self.state.get(index, {}).get("momentum_buffer") for index in gradients]
        lr, momentum, weight_decay = self._rates
        for index, gradient in gradients.items():  # in place, which torch's function does in a copy each
            if self._maximize:
                gradient.neg_()
            if weight_decay:
                gradient.add_(self.weights[index], alpha=weight_decay)
        sgd(
            [self.weights[index] for index in gradients],
            list(gradients.values()),
            buffers,  # filled by the first step
            lr=lr,
            momentum=momentum,
            weight_decay=0.0,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for index, buffer in zip(gradients, buffers, strict=True):
            if buffer is not None:
                self.state[index] = {"momentum_buffer": buffer}


class Adam:
    """`torch.optim.Adam`, or AdamW where the weights' decay is decoupled; `fused`, which takes no room beside them.

    state: the moments and the number of steps by the weight's position, named as torch's class does.
    """

    def __init__(
        self, weights: Iterable[Tensor], *, lr: float, weight_decay: float, decoupled: bool, maximize: bool
    ) -> None:
        self.weights = list(weights)
        self.state: dict[int, dict[str, Tensor]] = {}
        self._rates = lr, weight_decay
        self._decoupled, self._maximize = decoupled, maximize

    @torch.no_grad()
    def step(self) -> None:
        """Change the weights by their gradients."""
        gradients = _gradients(self.weights)
        for index in gradients.keys() - self.state.keys():
            weight = self.weights[index]
            self.state[index] = {
                "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        known = [self.state[index] for index in gradients]
        lr, weight_decay = self._rates
        adam(
            [self.weights[index] for index in gradients],
            list(gradients.values()),
            [one["exp_avg"] for one in known],
            [one["exp_avg_sq"] for one in known],
            [],
            [one["step"] for one in known],
            fused=True,
            decoupled_weight_decay=self._decoupled,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=weight_decay,
            eps=1e-8,
            maximize=self._maximize,
        )


Optimizer: TypeAlias = Sgd | Adam


def _gradients(weights: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return the gradients by the weight's position; a frozen weight has none."""
    return {index: weight.grad for index, weight in enumerate(weights) if weight.grad is not None}


def kept_state(store: Store, kind: str, number: int) -> Arrays:
    """Return what an optimiser of this kind had gathered by the round before `number`; nothing where there is none."""
    return store.load(kind, number - 1) if number - 1 in store.rounds(kind) else {}


def keep_state(store: Store, kind: str, number: int, state: Arrays) -> None:
    """Keep what an optimiser has gathered by the end of the round `number`, and that of the round before."""
    keep_newest(store, kind, number, state)


def state_of(optimizer: Optimizer) -> dict[str, np.ndarray[Any, Any]]:
    """Return what an optimiser has gathered, by the parameter's position and the name of the quantity."""
    return {
        f"{index}.{name}": value.detach().cpu().numpy()
        for index, entries in optimizer.state.items()
        for name, value in entries.items()
    }


def restore(optimizer: Optimizer, kept: Arrays) -> None:
    """Let an optimiser go on with what another one of its kind has gathered; not where shapes differ."""
    entries: dict[int, dict[str, Tensor]] = {}
    for key, value in kept.items():
        index, _, name = key.partition(".")
        if int(index) >= len(optimizer.weights):
            return
        weight = optimizer.weights[int(index)]
        if value.shape not in ((), weight.shape):
            return
        entries.setdefault(int(index), {})[name] = torch.from_numpy(np.array(value)).to(weight.device)
    optimizer.state = entries
