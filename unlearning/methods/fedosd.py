"""FedOSD: unlearn along a direction that no retained client's loss notices, then recover without going back.

Source: Pan, Wang, Li, Zheng, Wang, Tang, Zhao, "Federated Unlearning with Gradient Descent and Conflict Mitigation"
(AAAI 2025, arXiv 2412.20200), and the authors' code for all that follows; of the paper's text only abstract and
introduction could be read.

    θ    the global model, θ_0 before unlearning      Δ_i  change by local training on what client i keeps
    UCE  −log(1 − p_y/2), p_y the probability of the true class: 0 where it is 0, bounded, with bounded gradient
    Δ_u  change by local training on UCE over what target u forgets       ḡ  mean of the Δ_u

    unlearning      d = ḡ less its projection onto span{Δ_i};   θ ← θ + d · ‖ḡ‖/‖d‖
    post-training   a = θ − θ_0;   Δ_i ← Δ_i less its projection onto a, at its old length;   θ ← θ + mean of the Δ_i

Means are over clients, not weighed, as in the authors' code. A step along d changes no retained client's loss to first
order, where its Δ_i points along its gradient. The paper forgets whole clients; here a target that keeps a part is on
both sides: it sends Δ_u over what it forgets and Δ_i over the rest. Directions are of parameters; buffers become the
mean of those that come with the Δ_i, by examples.

The authors' example has 100 rounds of either kind, after 2,000 of training, with learning rates 0.0004 and 1e-6. Here
ten rounds of either kind are the default, and the round's own rate in post-training; unlearning has ten times their
rate for a tenth of their rounds. What ended their unlearning is a number of rounds, no measure of how far it came.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from unlearning.buffers import without_buffers
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
    Problem,
    Replies,
    Reply,
    UnlearningState,
)
from unlearning.methods.safe_range import Safe
from unlearning.methods.updates import (
    ask_staying,
    ask_targets,
    check_some_keep,
    mean_vector,
    moved,
    replies_of_targets,
    replies_with_examples,
    retained_side,
    trained_update,
    with_kept_buffers,
    with_retained_update,
)
from unlearning.parameters import Vector, add_weighted, dot, in_chunks, norm, parts
from unlearning.verification.difference.holders import TargetSends

START = "start"
FORGET, KEEP = "forget", "keep"
SMALLEST_SHARE = 1e-6
"""Where less than this of a direction is orthogonal to the others, what is left is rounding."""


class FedOsdParameters(MethodParameters):
    """Parameters of FedOSD."""

    # Each is an exchange of the whole federation: 1,000 are hours.
    unlearning_rounds: Annotated[int, Safe(high=100)] = Field(
        default=10, ge=1, le=1000, description="exchanges of the whole federation"
    )
    post_training_rounds: Annotated[int, Safe(high=100)] = Field(
        default=10, ge=0, le=1000, description="0: leave it to ordinary recovery, which may go back"
    )
    epochs: Annotated[int, Safe(high=10)] = Field(
        default=1, ge=1, le=1000, description="of each local training"
    )
    learning_rate: Annotated[float, Safe(high=1)] = Field(
        default=0.004, gt=0, le=100, description="of unlearning"
    )
    post_training_rate: Annotated[float, Safe(high=1)] = Field(
        default=0.0, ge=0, le=100, description="of post-training; 0: that of the round"
    )


class FedOsd(Method[FedOsdParameters]):
    """Orthogonal steepest descent. State: `start` is θ_0; `orthogonal`, the free share of each round."""

    Parameters = FedOsdParameters
    info = MethodInfo(
        name="fedosd",
        title="FedOSD",
        source="Pan et al., Federated Unlearning with Gradient Descent and Conflict Mitigation, and the authors' code",
        target_sends=TargetSends.FORGOTTEN,
        needs=frozenset(
            {Need.REQUESTER_ONLINE, Need.RETAINED_ONLINE, Need.CLASSIFIER, Need.LOSS_DERIVATIVES}
        ),
        remark=(
            "every client works in each of its rounds, twenty by default; the server holds all their updates at once"
        ),
        cost_remark="a target that keeps a part trains on it as well",
    )

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """Begin; each exchange is one round.

        Raises:
            MethodFailed: no client keeps anything, or the task is no classification.
        """
        check_some_keep(self.info.title, problem)
        state = super().begin(problem, parameters)
        return replace(state, arrays={START: parameters}, values={"orthogonal": []})

    def configure(self, problem: Problem[FedOsdParameters], state: UnlearningState) -> Instructions:
        """Ask all for their updates; in post-training only those that keep something."""
        own, ordinary = problem.parameters, replace(problem.training, optimizer="sgd")
        unlearns = state.exchanges < own.unlearning_rounds
        rate = own.learning_rate if unlearns else own.post_training_rate or ordinary.learning_rate
        training = replace(ordinary, epochs=own.epochs, learning_rate=rate)
        keep = Instruction(operation=KEEP, model=state.parameters, training=training)
        if not unlearns:
            return ask_staying(problem, keep)
        forget = replace(keep, operation=FORGET)
        return {**dict.fromkeys(problem.retained, keep), **ask_targets(problem, forget)}

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train on what is kept; a target on UCE over what it forgets, and sends the update of the rest beside."""
        if instruction.operation != FORGET:
            return trained_update(instruction, site, site.retain)
        lowering = replace(site, task=replace(site.task, loss=unlearning_cross_entropy))
        plain = replace(instruction, training=replace(instruction.training, weight_decay=0.0))
        return with_retained_update(trained_update(plain, lowering, site.forget), instruction, site)

    def aggregate(
        self, problem: Problem[FedOsdParameters], state: UnlearningState, replies: Replies
    ) -> UnlearningState:
        """Go one round further.

        Raises:
            MethodFailed: a target did not answer, no client holds an example to forget or to keep, or the retained
                clients' updates leave no direction free.
        """
        own, start = problem.parameters, cast(Vector, state.arrays[START])
        shares = list(state.values["orthogonal"])
        if state.exchanges < own.unlearning_rounds:
            forgetting = replies_of_targets(self.info.title, problem, replies)
            keeping = retained_side(self.info.title, problem, replies)
            wanted = mean_vector([forgetting[client].vector for client in sorted(forgetting)])
            step, share = orthogonal_step(wanted, [keeping[client].vector for client in sorted(keeping)])
            shares.append(share)
            terms = {"step": (1.0, step)}
        else:
            keeping = replies_with_examples(self.info.title, replies)
            away = without_buffers(problem.task, state.parameters - start)
            left = {client: without_component(reply.vector, away) for client, reply in keeping.items()}
            share = 1 / len(left)
            terms = {client: (scale * share, keeping[client].vector) for client, (scale, _) in left.items()}
            terms["\n"] = (-share * sum(along for _, along in left.values()), away)  # no client's id is so
        parameters = with_kept_buffers(problem.task, add_weighted(state.parameters, terms), keeping)
        done = state.exchanges + 1
        findings = {
            "rounds of unlearning": min(done, own.unlearning_rounds),
            "rounds of post-training": max(0, done - own.unlearning_rounds),
            "share of the targets' direction that was free, first and last round": [shares[0], shares[-1]],
        }
        finished = done == own.unlearning_rounds + own.post_training_rounds
        state = moved(problem, state, parameters, findings, start=start, finished=finished)
        return replace(state, values={"orthogonal": shares})

    def cost(self, given: CostSymbols, parameters: FedOsdParameters, preparation: object) -> Cost:
        """Compute (2 P B C + P B C_p) R_u + 2 P B (C_r + C_p) R_p bytes, F N E (C R_u + (C_r + C_p) R_p) FLOPs, 2 P B.

        R_u rounds of unlearning, R_p of post-training.
        """
        unlearning, post = parameters.unlearning_rounds, parameters.post_training_rounds
        return given.trips(
            given.num_clients * unlearning + given.num_staying * post,
            epochs=parameters.epochs,
            storage_bytes=2 * given.model_bytes,
            second_vectors=given.num_partial * unlearning,
        )


def unlearning_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean of UCE = −log(1 − p_y/2), a scalar, of logits (n, C) and targets (n,). Source: the authors'
    code.
    """
    true_class = functional.softmax(logits, dim=1).gather(1, targets[:, None])[:, 0]
    return -(1 - true_class / 2).log().mean()


def orthogonal_step(wanted: Vector, others: Sequence[Vector]) -> tuple[Vector, float]:
    """Compute d · ‖g‖/‖d‖ and the share ‖d‖/‖g‖ for d = g − Aᵀ(AAᵀ)⁺A g, `others` (d,) the rows of A, in float64.

    The least squares are those of the triangle R of Aᵀ = QR, put together in chunks, so A is never held as a whole.

    Raises:
        MethodFailed: nothing of g is orthogonal to the rows; or it is zero, a model that nothing can move.
    """
    columns = (*others, wanted)
    triangle = np.zeros((0, len(columns)))
    for part in parts(wanted.size):
        chunk = np.stack([column[part].astype(np.float64) for column in columns], axis=1)
        triangle = np.asarray(np.linalg.qr(np.vstack([triangle, chunk]), mode="r"))
    rows, goal = triangle[:, :-1], triangle[:, -1]
    smallest = float(np.finfo(np.float64).eps) * max(wanted.size, len(others))
    coefficients = np.linalg.lstsq(rows, goal, rcond=smallest)[0]
    length = float(np.linalg.norm(goal))
    share = float(np.linalg.norm(goal - rows @ coefficients)) / length if length else 0.0
    if share < SMALLEST_SHARE:
        raise MethodFailed(
            f"The updates of {len(others)} client(s) that stay leave no direction free in which to unlearn, or the "
            "targets' update is zero. Choose another method.",
            retryable=False,
            code="no-direction",
        )
    weights = dict(enumerate(-coefficients / share))

    def free(goal: NDArray[np.float64], *chunks: NDArray[np.float64]) -> NDArray[np.float64]:
        return sum((weights[place] * chunk for place, chunk in enumerate(chunks)), goal / share)

    return in_chunks(free, wanted, *others), share


def without_component(update: Vector, direction: Vector) -> tuple[float, float]:
    """Return s and t of s Δ − t a = (Δ − (Δ·a/‖a‖²) a) at the length of Δ, in float64.

    Both are zero where Δ lies along a; s is 1 and t zero where a is zero.
    """
    squared, length = dot(direction, direction), norm(update)
    along = dot(update, direction) / squared if squared else 0.0
    chunks = (update[part].astype(np.float64) - along * direction[part] for part in parts(update.size))
    kept = math.sqrt(sum(float(chunk @ chunk) for chunk in chunks))
    if kept <= SMALLEST_SHARE * length:
        return 0.0, 0.0
    return length / kept, along * length / kept
