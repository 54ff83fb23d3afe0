"""FedMemPrune: reset the parameters that one round of those who stay hardly moves, then let recovery train them again.

Source: Wei, Zhang, Zhang, Zhang, Chen, Ong, Zhang, Xiang, "Rethinking Federated Unlearning via the Lens of
Memorization" (KDD 2026, arXiv 2605.24545), and the authors' code for all that follows; of the paper's text
only abstract and introduction could be read.

    Δ_i   change by local training of a client that stays, one ordinary round      r   share of the parameters, 0.4

    θ ← θ + Σ_R (n_i/Σ n) Δ_i;   of all parameters the r·P with the smallest |mean_R Δ_i| are drawn again:
                 a tensor of two dimensions or more by Kaiming's uniform rule for ReLU, U(−√(6/fan-in), √(6/fan-in)),
                 any other by U(−0.1, 0.1)

The reading: what the retained data do not ask for in that round is redundant to them and so what remembers the others.
What they do need is trained on in recovery, which the published method has as its own 30 to 40 rounds.
The mean that ranks is over clients, not weighed, as in that code. Its experiments have r = 0.4 (EMNIST, VGG9) and 0.85
(CIFAR-100, ResNet-34), label skew both; its function's default is 0.2. Only whole clients leave there: a target that
keeps a part stays with that part. Buffers and frozen parameters are not drawn; buffers are averaged as in a round.
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

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
    add_mean_update,
    ask_staying,
    mean_vector,
    moved,
    replies_with_examples,
    trained_update,
    with_kept_buffers,
)
from unlearning.parameters import Slot, Vector, layout, parts, size_of_vector
from unlearning.training import structure
from unlearning.verification.difference.holders import TargetSends

FLAT_RANGE = 0.1
"""How far from zero a bias or scale is drawn."""


class FedMemPruneParameters(MethodParameters):
    """Parameters of FedMemPrune."""

    # Beyond that hardly anything is left of the model, and recovery is training from scratch.
    share: Annotated[float, Safe(high=0.9)] = Field(
        default=0.4, gt=0, le=1, description="r, of the parameters that are drawn again"
    )


class FedMemPrune(Method[FedMemPruneParameters]):
    """One ordinary round without what is forgotten, then the reset."""

    Parameters = FedMemPruneParameters
    info = MethodInfo(
        name="fedmemprune",
        title="FedMemPrune",
        source="Wei et al., Rethinking Federated Unlearning via the Lens of Memorization, and the authors' code",
        target_sends=TargetSends.KEPT,
        needs=frozenset({Need.RETAINED_ONLINE}),
        remark=(
            "never asks for what is forgotten; recovery has to train what was reset, 30 to 40 rounds as published"
        ),
        asks_everyone=True,
    )

    def configure(self, problem: Problem[FedMemPruneParameters], state: UnlearningState) -> Instructions:
        """Let all that keep something train as ever."""
        ordinary = Instruction(operation="train", model=state.parameters, training=problem.training)
        return ask_staying(problem, ordinary)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train as ever on what is kept; the answer is the update."""
        return trained_update(instruction, site, site.retain)

    def aggregate(
        self, problem: Problem[FedMemPruneParameters], state: UnlearningState, replies: Replies
    ) -> UnlearningState:
        """Average as ever, then draw again what hardly moved.

        Raises:
            MethodFailed: no client that keeps an example answered.
        """
        answered = replies_with_examples(self.info.title, replies)
        model = structure(problem.task)
        own = trainable(model)
        mean = mean_vector([reply.vector for reply in answered.values()])
        redundant = least_moved(mean, own, problem.parameters.share)
        del mean
        parameters = with_kept_buffers(problem.task, add_mean_update(state.parameters, answered), answered)
        draw_again(parameters, redundant, layout(model), np.random.default_rng([problem.seed, problem.round]))
        findings = {
            "parameters drawn again": int(redundant.sum()),
            "share of all parameters": int(redundant.sum()) / int(own.sum()),
            "clients whose updates ranked them": len(answered),
        }
        return moved(problem, state, parameters, findings)

    def cost(self, given: CostSymbols, parameters: FedMemPruneParameters, preparation: object) -> Cost:
        """Compute 2 P B (C_r + C_p) bytes, F N E (C_r + C_p) FLOPs, P B stored: one ordinary round."""
        return given.trips(given.num_staying, storage_bytes=given.model_bytes)


def trainable(model: nn.Module) -> NDArray[np.bool_]:
    """Return which numbers of the flat vector are trained: no buffers; shape (d,)."""
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    mask = np.zeros(size_of_vector(model), dtype=np.bool_)
    for slot in layout(model):
        mask[slot.start : slot.stop] = slot.name in names
    return mask


def least_moved(mean: Vector, own: NDArray[np.bool_], share: float) -> NDArray[np.bool_]:
    """Return which parameters are the ⌊r·P⌋ with the smallest |mean update| of the P in `own`; of equals the first.

    mean, own: (d,), as the result.
    """
    sizes = mean[own]
    np.abs(sizes, out=sizes)
    if not (count := int(share * sizes.size)):
        return np.zeros_like(own)
    sizes.partition(count - 1)
    edge = sizes[count - 1]
    del sizes
    chosen: NDArray[np.bool_] = (-edge < mean) & (mean < edge) & own
    equals = np.flatnonzero(((mean == edge) | (mean == -edge)) & own)
    chosen[equals[: count - int(chosen.sum())]] = True
    return chosen


def draw_again(
    parameters: Vector, which: NDArray[np.bool_], slots: tuple[Slot, ...], generator: np.random.Generator
) -> None:
    """Put fresh numbers in the places `which` of a model (d,); as many are drawn as it has."""
    for slot in slots:
        fan_in = int(np.prod(slot.shape[1:]))
        bound = np.sqrt(6 / fan_in) if len(slot.shape) > 1 else FLAT_RANGE
        for place in parts(slot.stop, slot.start):
            fresh = generator.uniform(-bound, bound, place.stop - place.start)
            np.copyto(parameters[place], fresh, casting="same_kind", where=which[place])
