"""The shadow models of a federation: how each is trained, and what examples look like to those with and without them.

Shadow federations come in pairs. A coin falls for each example and pair; the first of the pair is trained on
heads, the second on tails. So every example is in exactly half of the shadow models, and its id and the seed
tell in which: no list of members ever travels.

Source: Carlini et al., Membership Inference Attacks From First Principles (S&P 2022): shadow models on
random halves. The coin from a hash instead of a drawn permutation is ours.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.evaluation import evaluate, predict
from unlearning.parameters import Vector
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, local_seed, train
from unlearning.verification.lira import Gaussians, Shadows, Values, fit, logit_confidence, margins
from unlearning.verification.observations import draw_sample

FEWEST, MOST = 4, 512
"""Two shadow models a side are the fewest that have a variance; a SHA-256 holds coins for 256 pairs."""

ENOUGH_FOR_OWN_VARIANCES = 64
"""With fewer shadow models one variance for all examples attacks better (Carlini et al., §VI)."""

_SIDES = ("with", "without")


@dataclass(frozen=True, slots=True)
class ShadowFits:
    """What k sampled examples look like to the shadow models: a Gaussian with and one without each example.

    handles (k,): as in `Outputs`; they pair an example with what is observed of it at any measurement.
    """

    handles: Values
    inside: Gaussians
    outside: Gaussians

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fits as named arrays, for transport; `from_arrays` is the inverse."""
        sides = dict(zip(_SIDES, (self.inside, self.outside), strict=True))
        return {"handles": self.handles} | {
            f"{side}-{item.name}": getattr(gaussians, item.name)
            for side, gaussians in sides.items()
            for item in fields(gaussians)
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "ShadowFits":
        """Return the inverse of `to_arrays`.

        Raises:
            DataError: an array is missing, of another length, or not finite; or a variance is negative.
        """
        names = [f"{side}-{item.name}" for side in _SIDES for item in fields(Gaussians)]
        missing = sorted({"handles", *names} - set(arrays))
        if missing:
            raise DataError(f"What shadow models say of examples lacks the array(s) {', '.join(missing)}.")
        found = {name: np.asarray(arrays[name], dtype=np.float64) for name in ("handles", *names)}
        for name, array in found.items():
            may_be_negative = name == "handles" or name.endswith("means")
            is_sound = np.isfinite(array).all() and (may_be_negative or (array >= 0).all())
            if array.ndim != 1 or array.shape != found["handles"].shape or not is_sound:
                raise DataError(f"What shadow models say of examples: {name} holds no numbers that fit.")
        inside, outside = (
            Gaussians(*(found[f"{side}-{item.name}"] for item in fields(Gaussians))) for side in _SIDES
        )
        return cls(found["handles"], inside, outside)

    def select(self, positions: NDArray[np.intp]) -> "ShadowFits":
        """Return those at `positions`."""
        return ShadowFits.from_arrays({name: array[positions] for name, array in self.to_arrays().items()})


def shadow_seed(seed: int, number: int) -> int:
    """Return the seed of the shadow federation `number` of a run: its initial weights and orders of examples."""
    return local_seed(seed, f"shadow federation {number}", 0)


def shadow_membership(ids: NDArray[np.str_], number: int, *, seed: int) -> NDArray[np.bool_]:
    """Return which of the examples with these ids (n,) the shadow federation `number` (from 0) is trained on, (n,)."""
    pair, is_second = divmod(number, 2)
    byte, bit = divmod(pair, 8)
    heads = [hashlib.sha256(f"{seed}:{name}".encode()).digest()[byte] >> bit & 1 for name in ids.tolist()]
    result: NDArray[np.bool_] = np.array(heads, dtype=np.bool_) ^ bool(is_second)
    return result


def join_fits(parts: Iterable[ShadowFits]) -> ShadowFits:
    """Return all of them one after another, in the order given; at least one."""
    columns = [part.to_arrays() for part in parts]
    return ShadowFits.from_arrays(
        {name: np.concatenate([arrays[name] for arrays in columns]) for name in columns[0]}
    )


def train_models(
    task: Task,
    models: Sequence[Vector],
    examples: Examples,
    training: TrainingSettings,
    *,
    seed: int,
    holder: str,
    number: int,
) -> dict[int, tuple[int, Vector]]:
    """Return each shadow model (d,) trained on its half of `examples`, with the half's size; empty halves are left out.

    seed: of the run. holder: whose examples these are. number: of the shadow round. The order of batches follows
    from the three and the shadow model's number, whatever `training.seed` is.
    """
    trained = {}
    for shadow, model in enumerate(models):
        half = examples.select(shadow_membership(examples.ids, shadow, seed=seed))
        if len(half):
            own = replace(training, seed=local_seed(shadow_seed(seed, shadow), holder, number))
            trained[shadow] = (len(half), train(task, model, half, own).parameters)
    return trained


def fit_models(
    task: Task,
    models: Sequence[Vector],
    examples: Examples,
    *,
    seed: int,
    max_samples: int,
    generator: np.random.Generator,
) -> ShadowFits:
    """Return what the shadow models (each (d,), by their number) say of a sample of min(n, max_samples) examples.

    A generator in the same state as `observe_model`'s draws the same examples and handles.

    Raises:
        DataError: a model's margin of an example is not a finite number.
    """
    chosen, handles = draw_sample(len(examples), max_samples, generator)
    sampled = examples.select(chosen)
    found = np.stack([_margins_of(task, model, sampled) for model in models])
    trained_on = np.stack(
        [shadow_membership(sampled.ids, number, seed=seed) for number in range(len(models))]
    )
    return ShadowFits(handles, *fit(Shadows(found, trained_on)))


def _margins_of(task: Task, model: Vector, examples: Examples) -> Values:
    if task.num_classes < 2 or not examples.has_labels:  # nothing is compared with these
        return logit_confidence(evaluate(task, model, examples).confidence)
    return margins(
        predict(task, model, examples).astype(np.float64), examples.targets.numpy().astype(np.int64)
    )
