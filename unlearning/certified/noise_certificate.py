"""What a release promises, on what it rests, and which of that does not hold."""

from dataclasses import dataclass

import torch

from unlearning.certified.linear_head import linear_head
from unlearning.certified.noise import Mechanism, analytic_sigma, classical_sigma
from unlearning.certified.sensitivity import Sensitivity
from unlearning.errors import NumericalError
from unlearning.tasks.losses import cross_entropy
from unlearning.tasks.task import Task


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
    calibrate = analytic_sigma if mechanism is Mechanism.ANALYTIC else classical_sigma
    return NoiseCertificate(
        epsilon=epsilon,
        delta=delta,
        sigma=calibrate(epsilon=epsilon, delta=delta, sensitivity=sensitivity.value),
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

    Known to be strongly convex is multinomial logistic regression alone: one linear layer on fixed features
    (`linear_head`), cross entropy and an L2 term. Everything else is taken not to be.
    """
    unmet: list[str] = []
    try:
        linear_head(task)
    except NumericalError as exc:
        unmet.append(str(exc))
    if task.loss is not cross_entropy:
        unmet.append(f"The loss of {task.name} is not the cross entropy that the constants are derived for.")
    if l2 <= 0:
        unmet.append("There is no L2 term (weight decay), so the loss is not strongly convex.")
    return tuple(unmet)
