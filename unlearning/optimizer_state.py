"""What an optimiser has gathered (momentum, Adam's moments) as named arrays, to go on with it in the next round.

It was computed from the client's examples, so it stays at the client and is erased with whatever methods keep there. An
optimiser goes on with that of the round directly before only. So a client that left a round out begins again, and all
do after a deletion, whose exchanges are rounds too.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from unlearning.runtime.stores import Arrays, Store, keep_newest
from unlearning.training_step import Sgd

OPTIMIZER = "optimizer"
"""The name of the store at a client."""


def kept_state(store: Store, kind: str, number: int) -> Arrays:
    """Return what an optimiser of this kind had gathered by the round before `number`; nothing where there is none."""
    return store.load(kind, number - 1) if number - 1 in store.rounds(kind) else {}


def keep_state(store: Store, kind: str, number: int, state: Arrays) -> None:
    """Keep what an optimiser has gathered by the end of the round `number`, and that of the round before."""
    keep_newest(store, kind, number, state)


def state_of(optimizer: torch.optim.Optimizer | Sgd) -> dict[str, np.ndarray[Any, Any]]:
    """Return what an optimiser has gathered, by the parameter's position and the name of the quantity."""
    return {
        f"{index}.{name}": value.detach().cpu().numpy()
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if isinstance(value, torch.Tensor)
    }


def restore(optimizer: torch.optim.Optimizer | Sgd, kept: Arrays, weights: Sequence[torch.Tensor]) -> None:
    """Let an optimiser of `weights` go on with what another one of its kind has gathered; not where shapes differ."""
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in kept.items():
        index, _, name = key.partition(".")
        if int(index) >= len(weights) or value.shape not in ((), weights[int(index)].shape):
            return
        entries.setdefault(int(index), {})[name] = torch.from_numpy(np.array(value))
    known = optimizer.state_dict()
    optimizer.load_state_dict({**known, "state": entries})
