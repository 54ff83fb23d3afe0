"""What a release promises, on what it rests, and which of that does not hold."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from unlearning.certified.noise import Mechanism, calibrated_sigma
from unlearning.certified.sensitivity import Sensitivity
from unlearning.tasks.losses import cross_entropy
from unlearning.tasks.task import Task
from unlearning.training import build


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCertificate:
    """One release of an unlearned model under noise.

    What it states: an observer of the released model cannot tell, beyond (ε, δ), whether it is the unlearned
    model or the retrained one with the same noise, given the same initial weights and batches. It says nothing
    about models that were released before.

    sigma: standard deviation of the noise on every entry.
    sensitivity: the Δ it is calibrated to, with its source and constants.
    unmet: the assumptions that do not hold, a sentence each; with one, nothing is certified.
    """

    epsilon: float
    delta: float
    sigma: float
    mechanism: Mechanism
    sensitivity: Sensitivity
    unmet: tuple[str, ...] = ()

    @property
    def is_certified(self) -> bool:
        """Whether (ε, δ) is proven: the sensitivity is a bound and no assumption fails."""
        return self.sensitivity.is_bound and not self.unmet

    @property
    def statement(self) -> str:
        """What holds, in a sentence or two for the report."""
        basis = self.sensitivity.source
        if self.sensitivity.constants is not None:
            basis += f"; constants: {self.sensitivity.constants.source}"
        noise = (
            f"Gaussian noise of standard deviation {self.sigma:.6g} ({self.mechanism}) for a sensitivity of "
            f"{self.sensitivity.value:.6g} ({basis})"
        )
        if self.is_certified:
            return f"Certified ({self.epsilon:g}, {self.delta:g})-unlearning: {noise}."
        reasons = list(self.unmet)
        if not self.sensitivity.is_bound:
            reasons.append("The sensitivity is no proven bound.")
        return f"Calibrated noise, not certified: {noise}. {' '.join(reasons)}"

    def values(self) -> dict[str, Any]:
        """Return everything as plain values for JSON, with the statement."""
        return {**asdict(self), "is_certified": self.is_certified, "statement": self.statement}


def certificate(
    *,
    epsilon: float,
    delta: float,
    sensitivity: Sensitivity,
    unmet: tuple[str, ...],
    mechanism: Mechanism = Mechanism.ANALYTIC,
) -> NoiseCertificate:
    """Return the certificate of one release with noise calibrated to (ε, δ) and `sensitivity`.

    `unmet` has no default on purpose: who certifies has looked (`unmet_assumptions` does for known models).

    Raises:
        ConfigurationError: ε, δ or Δ is out of the mechanism's range.
    """
    sigma = calibrated_sigma(mechanism, epsilon=epsilon, delta=delta, sensitivity=sensitivity.value)
    return NoiseCertificate(
        epsilon=epsilon,
        delta=delta,
        sigma=sigma,
        mechanism=mechanism,
        sensitivity=sensitivity,
        unmet=unmet,
    )


def unmet_assumptions(task: Task, l2: float) -> tuple[str, ...]:
    """Return what `task` trained with weight decay `l2` lacks for a bound, a sentence each; empty:
    nothing.
    """
    unmet = unmet_convexity(task, l2)
    if task.dtype == torch.float64:
        return unmet
    name = str(task.dtype).removeprefix("torch.")
    return (
        *unmet,
        f'Training is in {name}, whose rounding can exceed the bound: train in float64 (dtype = "float64").',
    )


def unmet_convexity(task: Task, l2: float) -> tuple[str, ...]:
    """Return what `task` trained with weight decay `l2` lacks of strong convexity, a sentence each; empty:
    nothing.

    Known to be strongly convex is multinomial logistic regression alone: one linear layer, cross entropy
    and an L2 term. Everything else is taken not to be.
    """
    unmet: list[str] = []
    if linear_layer(task) is None:
        unmet.append(
            f"The model of {task.name} is not one linear layer, so its loss is not known to be convex."
        )
    if task.loss is not cross_entropy:
        unmet.append(f"The loss of {task.name} is not the cross entropy that the constants are derived for.")
    if l2 <= 0:
        unmet.append("There is no L2 term (weight decay), so the loss is not strongly convex.")
    return tuple(unmet)


def linear_layer(task: Task) -> nn.Linear | None:
    """Return the layer of a model that is one linear layer and nothing else (no subclass, no hook, nothing
    frozen).
    """
    layers = [
        module
        for module in build(task, seed=0).modules()
        if type(module) not in (nn.Sequential, nn.Flatten, nn.Identity)
    ]
    if len(layers) != 1 or type(layers[0]) is not nn.Linear:
        return None
    parameters = dict(layers[0].named_parameters())
    is_plain = parameters.keys() <= {"weight", "bias"} and "weight" in parameters
    trains = all(parameter.requires_grad for parameter in parameters.values())
    return layers[0] if is_plain and trains else None
