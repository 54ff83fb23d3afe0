"""Certified noisy fine-tuning: retained clients train on, and every step is clipped and gets noise.

Source: Koloskova, Allouah, Jha, Guerraoui, Koyejo, Certified Unlearning for Neural Networks (ICML 2025, arXiv
2506.06985); one step is one round of retained clients. Steps, bounds and what they are proven by are in
`unlearning.certified.noisy_steps`.

The final model is (ε, δ)-indistinguishable from that of the same steps from any other model, one that never had the
forgotten data among them. Nothing is assumed of network, loss or how the model was trained, no client need be prepared,
and a target need not be there. It holds because nothing after x_0 looks at the old model: radii, steps and noise
are given beforehand, the anchor is the model that the run began with (fresh weights, or published ones that the task
loads), and recovery has a fixed number of rounds. It does not pay for large models: noise grows with √d.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from unlearning.certified.noise import Normal, add_noise, gaussian_epsilon, largest_ratio
from unlearning.certified.noisy_steps import NoisySteps, noisy_step, project
from unlearning.certified.secret_noise import KeyedNormal, derived_key
from unlearning.certified.sensitivity import Sensitivity
from unlearning.errors import MethodFailed
from unlearning.methods.costs import Cost, CostSymbols
from unlearning.methods.method import (
    ClientSite,
    Instruction,
    Instructions,
    Method,
    MethodInfo,
    MethodParameters,
    Need,
    Noise,
    Problem,
    Replies,
    Reply,
    UnlearningState,
)
from unlearning.methods.safe_range import OperatorsOnly, Safe
from unlearning.methods.updates import (
    add_mean_update,
    ask_staying,
    replies_with_examples,
    trained_update,
)
from unlearning.parameters import Vector, content_hash
from unlearning.secure_aggregation.addends import SecureTotal
from unlearning.verification.difference.holders import TargetSends


class NoisyFineTuningParameters(MethodParameters):
    """The guarantee, and how it is reached; all of it is chosen without a look at the model."""

    epsilon: Annotated[float, Safe(high=3)] = Field(
        default=3.0, gt=0, le=100, description="ε of the guarantee"
    )
    delta: Annotated[float, Safe(high=1e-5)] = Field(
        default=1e-5, gt=0, le=0.1, description="δ of the guarantee; below one over the number of examples"
    )
    # 1,000 rounds of the whole federation are days.
    steps: Annotated[int, Safe(high=1000)] = Field(
        default=10, ge=0, le=100_000, description="rounds with noise; 0: noise on the model as it is"
    )
    radius: Annotated[float | None, OperatorsOnly()] = Field(
        default=None,
        gt=0,
        le=1e6,
        description="how far from the first model of the run a model may be; none: so far that the noise of all steps "
        "is as long as the first model",
    )
    update_share: Annotated[float, OperatorsOnly()] = Field(
        default=0.1, gt=0, le=10, description="how long a round's update may be, of the radius"
    )
    contraction: Annotated[float, OperatorsOnly()] = Field(
        default=1.0, gt=0, le=1, description="what a step leaves of the distance to the run's first model"
    )
    clip: Annotated[Literal["updates", "models"], OperatorsOnly()] = Field(
        default="updates", description="what is shortened before the noise: updates or models"
    )

    def noisy_steps(self, anchor: NDArray[np.float64]) -> NoisySteps:
        """Return how steps are clipped around `anchor` (d,), from which alone the radius follows if it is not given.

        Raises:
            MethodFailed: it does not follow, for the anchor is zero.
        """
        unit = NoisySteps(
            radius=1.0,
            update_radius=self.update_share,
            contraction=self.contraction,
            steps=self.steps,
            clips_models=self.clip == "models" and self.steps > 0,
        )
        radius = self.radius
        if radius is None:
            noise = unit.sigma(epsilon=self.epsilon, delta=self.delta) * unit.spread * np.sqrt(anchor.size)
            radius = float(np.linalg.norm(anchor)) / float(noise)
        if radius == 0:
            raise MethodFailed(
                "The first model of the run is zero, so no radius follows from it. Give one (radius).",
                retryable=False,
                code="no-radius",
            )
        return replace(unit, radius=radius, update_radius=radius * self.update_share)


class NoisyFineTuning(Method[NoisyFineTuningParameters]):
    """One exchange a step, with the retained clients; none for output perturbation (`steps` = 0)."""

    Parameters = NoisyFineTuningParameters
    info = MethodInfo(
        name="noisy-fine-tuning",
        title="Noisy fine-tuning",
        source="Koloskova et al., Certified Unlearning for Neural Networks; a step is a round of retained clients",
        target_sends=TargetSends.KEPT,
        needs=frozenset({Need.RETAINED_ONLINE, Need.NO_STATISTICS, Need.FRESH_OPTIMIZER}),
        remark=(
            "a guarantee (ε, δ) for any network; its noise grows with the number of trained "
            "parameters: for heads and adapters, a large network has to learn again"
        ),
        draws_noise=True,
        sums_suffice=True,
    )

    def begin(self, problem: Problem[NoisyFineTuningParameters], parameters: Vector) -> UnlearningState:
        """Begin with Π_C0(θ) around the run's first model; with 0 steps it gets its noise at once.

        Raises:
            MethodFailed: the model has running statistics, clients keep optimizer state, or δ promises nothing for
                so many examples.
        """
        own = problem.parameters
        super().begin(problem, parameters)
        _check(problem)
        anchor = problem.first_model().astype(np.float64)
        steps = own.noisy_steps(anchor)
        start = project(parameters.astype(np.float64) - anchor, steps.radius)
        model = (anchor + start).astype(parameters.dtype)
        sigma = steps.sigma(epsilon=own.epsilon, delta=own.delta)
        state = UnlearningState(parameters=model, noise=_noise(own, steps, sigma))
        if own.steps:
            return state
        noisy = _with_noise(problem, start, sigma, exchange=0)
        return replace(_told(problem, state, (anchor + noisy).astype(parameters.dtype)), finished=True)

    def configure(self, problem: Problem, state: UnlearningState) -> Instructions:
        """Let all that keep something train on it."""
        return ask_staying(
            problem, Instruction(operation="train", model=state.parameters, training=problem.training)
        )

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train as ever on what is retained; the answer is the update."""
        return trained_update(instruction, site, site.retain)

    def aggregate(
        self, problem: Problem[NoisyFineTuningParameters], state: UnlearningState, replies: Replies
    ) -> UnlearningState:
        """Go one noisy step further.

        Raises:
            MethodFailed: no client that keeps an example answered.
        """
        answered = replies_with_examples(self.info.title, replies)
        return _stepped(problem, state, add_mean_update(state.parameters, answered))

    def after_sum(
        self, problem: Problem[NoisyFineTuningParameters], state: UnlearningState, total: SecureTotal
    ) -> UnlearningState:
        """Go one noisy step further, by the mean that a sum gives."""
        return _stepped(problem, state, total.applied_to(state.parameters))

    def cost(self, given: CostSymbols, parameters: NoisyFineTuningParameters, preparation: object) -> Cost:
        """Compute 2 P B (C_r + C_p) T bytes, F N E (C_r + C_p) T FLOPs, P B stored."""
        return given.trips(given.num_staying * parameters.steps, storage_bytes=given.model_bytes)


def _stepped(
    problem: Problem[NoisyFineTuningParameters], state: UnlearningState, trained: Vector
) -> UnlearningState:
    """Return the state after a step towards `trained` (d,), what the clients have made of the state's model."""
    own, before = problem.parameters, state.parameters.astype(np.float64)
    assert state.noise is not None, "begin has set it"
    anchor, sigma = problem.first_model().astype(np.float64), state.noise.sigma
    steps, point = own.noisy_steps(anchor), before - anchor
    if not state.exchanges:  # it was rounded to the model's type
        point = project(point, steps.radius)
    point = noisy_step(
        point,
        trained.astype(np.float64) - before,
        steps,
        lambda clean: _with_noise(problem, clean, sigma, exchange=state.exchanges),
    )
    model = (anchor + point).astype(state.parameters.dtype)
    if state.exchanges + 1 < own.steps:
        return state.advance(model, finished=False)
    return _told(problem, state.advance(model, finished=True), model)


def _check(problem: Problem[NoisyFineTuningParameters]) -> None:
    own, examples = problem.parameters, sum(problem.num_examples.values())
    if examples and own.delta >= 1 / examples:
        raise MethodFailed(
            f"A delta of {own.delta:g} promises nothing for {examples:,} examples: it would allow to give one of them "
            f"away. Choose one below {1 / examples:.1g}.",
            retryable=False,
            code="delta-too-large",
        )


def _noise(own: NoisyFineTuningParameters, steps: NoisySteps, sigma: float) -> Noise:
    """Return what the final model's noise proves."""
    seen = gaussian_epsilon(delta=own.delta, sigma=sigma, sensitivity=steps.reach_of_a_step)
    source = f"{own.steps} noisy steps of clipped {own.clip}, from any model that never had it"
    return Noise(
        sigma=sigma,
        delta=own.delta,
        bound=Sensitivity(
            value=sigma * largest_ratio(epsilon=own.epsilon, delta=own.delta), is_bound=True, source=source
        ),
        holds_alone=steps.clips_models,
        not_of=(
            "the steps in between, which the clients that take part see: who keeps them all can tell within "
            f"ε = {seen:.4g} at δ = {own.delta:g}"
        )
        if own.steps
        else "anything that clients kept of them",
    )


def _with_noise(
    problem: Problem, clean: NDArray[np.float64], sigma: float, *, exchange: int
) -> NDArray[np.float64]:
    """Return `clean` (d,) with the noise of an exchange; the same work done again has the same, other work has none."""
    source: Normal = np.random.default_rng()
    if problem.noise_key is not None:
        what = ("noisy-fine-tuning", str(exchange), content_hash(clean), float(sigma).hex())
        source = KeyedNormal(derived_key(problem.noise_key, *what))
    return add_noise(clean, sigma, source).astype(np.float64, copy=False)


def _told(
    problem: Problem[NoisyFineTuningParameters], state: UnlearningState, model: Vector
) -> UnlearningState:
    own, anchor = problem.parameters, problem.first_model().astype(np.float64)
    assert state.noise is not None, "begin has set it"
    steps = own.noisy_steps(anchor)
    findings: dict[str, Any] = {
        "σ": state.noise.sigma,
        "ε": own.epsilon,
        "δ": own.delta,
        "trained parameters": model.size,
        "radius of the ball around the first model": steps.radius,
        "length of the noise of all steps": state.noise.sigma * steps.spread * float(np.sqrt(model.size)),
        "length of the first model": float(np.linalg.norm(anchor)),
    }
    return replace(state, parameters=model, findings=findings)
