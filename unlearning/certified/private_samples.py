"""Local training with differential privacy for single samples: DP-SGD.

    n samples at the site   B batch size   q = B/n   C clip norm   z noise multiplier

    in each of round(n/B) steps a pass every sample is drawn with probability q, by itself
    g = (Σ_i Π_C(∇ℓ_i) + z C ξ) / B          ξ ~ N(0, I), Π_C the projection to the ball of radius C

The optimiser goes on with g as with any gradient. One sample more or less changes the sum by at most C, so all steps
of all rounds are a composition of sampled Gaussian mechanisms, which `spent_epsilon` counts; the other sites' models
in between are post-processing. Each training draws a fresh key, for who is drawn, for the noise and for all else that
is random: with augmentation or dropout by a seed that the server knows, one sample more would change what the others'
gradients are, and the server would see it. Augmentation changes each example by itself, or mixed ones would have a part
in several gradients.

n counts as known: it decides q, and the weight of the site's model.

Source: Abadi et al., Deep Learning with Differential Privacy (2016), Algorithm 1, with a fixed divisor. Opacus has the
same steps; it is not used because its distribution installs top-level packages (`benchmarks`, `examples`) over those of
other projects.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from unlearning.certified.round_lengths import PrivateRounds
from unlearning.certified.secret_noise import KeyedNormal, derived_key
from unlearning.embeddings import differentiable_embeddings
from unlearning.errors import AppError
from unlearning.parameters import outputs_with
from unlearning.runtime.devices import drawing, inputs_for, targets_for
from unlearning.tasks.inputs import Inputs, count_of, each, outputs_of
from unlearning.tasks.task import Examples, Task

Augment: TypeAlias = Callable[[Any, torch.Generator], Inputs]

_CHUNK_NUMBERS = 2**21
"""Most numbers of single gradients that are in memory at a time; more are slower, as they leave the caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSteps:
    """The steps of one local training: how many, and the chance of a sample to be drawn in one."""

    count: int
    sampling: float

    @classmethod
    def of(cls, num_examples: int, batch_size: int, epochs: int) -> "PrivateSteps":
        """Return the steps of so many passes over so many examples, at least one a pass."""
        a_pass = max(1, round(num_examples / batch_size))
        return cls(count=epochs * a_pass, sampling=min(1.0, batch_size / num_examples))

    def with_noise(self, noise_multiplier: float) -> PrivateRounds:
        """Return them as the accountant counts them."""
        return PrivateRounds(noise_multiplier=noise_multiplier, sampling=self.sampling, count=self.count)


def train_privately(
    task: Task,
    model: nn.Module,
    examples: Examples,
    *,
    steps: PrivateSteps,
    clip_norm: float,
    noise_multiplier: float,
    optimizer: Any,
    key: bytes | None = None,
    augment: Augment | None = None,
) -> float:
    """Train `model` in place; return the mean loss of the drawn examples, which has no noise (nan: none was drawn).

    optimizer: of the model's parameters, as torch's. key: 32 secret bytes, used once; None draws them.
    augment: changes inputs (n, ...), here those of one example at a time.

    Raises:
        AppError: `augment` does not return one example for one.
    """
    key, device = key or token_bytes(32), next(model.parameters()).device
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    normal, expected = KeyedNormal(derived_key(key, "noise")), steps.sampling * len(examples)
    total, seen = 0.0, 0
    generator = torch.Generator().manual_seed(_seed(key, "augmentation"))
    # All else: dropout, and what the app's augmentation draws beside `generator`.
    with drawing(_seed(key, "all else"), device):
        for drawn in _draws(KeyedNormal(derived_key(key, "who is drawn")), len(examples), steps):
            sums = [torch.zeros_like(weight, dtype=torch.float64) for weight in weights]
            if len(drawn):
                inputs, targets = examples.batch(drawn)
                if augment is not None:
                    inputs = _augmented(augment, inputs, len(drawn), generator)
                inputs, targets = inputs_for(task, inputs, device), targets_for(task, targets, device)
                total += add_clipped(task, model, inputs, targets, clip_norm, sums)
                seen += len(drawn)
            for weight, clean in zip(weights, sums, strict=True):
                noise = torch.from_numpy(normal.standard_normal(clean.numel())).view(clean.shape).to(device)
                weight.grad = ((clean + noise_multiplier * clip_norm * noise) / expected).to(weight.dtype)
            optimizer.step()
    return total / seen if seen else float("nan")


def _seed(key: bytes, what: str) -> int:
    return int.from_bytes(derived_key(key, what)[:8]) >> 1


def _augmented(augment: Augment, inputs: Inputs, count: int, generator: torch.Generator) -> Inputs:
    rows = []
    for number in range(count):
        row = augment(each(lambda one, at=number: one[at : at + 1], inputs), generator)
        if count_of(row) != 1:
            raise AppError(
                f"Task.augment gave {count_of(row)} examples for one. With privacy for single samples let it change "
                "each example by itself.",
                code="augment",
            )
        rows.append(row)
    return each(lambda *parts: torch.cat(parts), *rows)


def _draws(normal: KeyedNormal, num_examples: int, steps: PrivateSteps) -> Iterator[np.ndarray[Any, Any]]:
    """Yield who is drawn in each step, as positions."""
    for _ in range(steps.count):
        yield np.flatnonzero(normal.uniform(num_examples) < steps.sampling)


def add_clipped(
    task: Task, model: nn.Module, inputs: Inputs, targets: Tensor, clip_norm: float, sums: list[Tensor]
) -> float:
    """Add each example's gradient, shortened to `clip_norm`, to `sums`; return the sum of their losses.

    sums: one per trained weight, in float64. A gradient that is not finite is zero.
    """
    a_chunk, total = max(1, _CHUNK_NUMBERS // sum(one.numel() for one in sums)), 0.0
    for start in range(0, len(targets), a_chunk):
        which = slice(start, start + a_chunk)
        losses, gradients = single_gradients(
            task, model, each(lambda one, part=which: one[part], inputs), targets[which]
        )
        squares = sum(one.flatten(1).double().square().sum(1) for one in gradients)
        norms = torch.as_tensor(squares).sqrt()
        factors = torch.where(norms.isfinite(), (clip_norm / norms.clamp_min(1e-300)).clamp_max(1.0), 0.0)
        for clean, one in zip(sums, gradients, strict=True):
            finite = one.double().nan_to_num(0.0, 0.0, 0.0)
            clean += torch.einsum("n,n...->...", factors, finite)
        total += float(losses.nan_to_num(0.0).sum())
    return total


def single_gradients(
    task: Task, model: nn.Module, inputs: Inputs, targets: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return each example's loss (n,) and gradient, (n, ...) per trained weight.

    All at once where torch can; one after another where the model has something that it cannot (as a GRU).
    """
    trained = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
    with differentiable_embeddings(model):
        try:
            return _all_at_once(task, model, trained, inputs, targets)
        except (RuntimeError, ValueError):  # no rule for one of the model's operations
            return _one_after_another(task, model, inputs, targets)


def _all_at_once(
    task: Task, model: nn.Module, trained: Mapping[str, Tensor], inputs: Inputs, targets: Tensor
) -> tuple[Tensor, list[Tensor]]:
    def loss_of(weights: Mapping[str, Tensor], one: Inputs, target: Tensor) -> tuple[Tensor, Tensor]:
        alone = each(lambda part: part.unsqueeze(0), one)
        loss = task.loss(outputs_with(model, weights, alone), target.unsqueeze(0))
        return loss, loss.detach()

    every = vmap(grad(loss_of, has_aux=True), in_dims=(None, 0, 0), randomness="different")
    gradients, losses = every(trained, inputs, targets)
    return losses, [gradients[name] for name in trained]


def _one_after_another(
    task: Task, model: nn.Module, inputs: Inputs, targets: Tensor
) -> tuple[Tensor, list[Tensor]]:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    losses, rows = [], []
    for number in range(len(targets)):
        which = slice(number, number + 1)
        loss = task.loss(outputs_of(model, each(lambda one, part=which: one[part], inputs)), targets[which])
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        rows.append([torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)])
        losses.append(loss.detach())
    return torch.stack(losses), [torch.stack(one) for one in zip(*rows, strict=True)]
