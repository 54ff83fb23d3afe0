"""FedQUIT: the target distils the global model into itself, with the true classes' scores taken away.

Source: Mora, Valerio, Bellavista, Passarella, "FedQUIT: On-Device Federated Unlearning via a Quasi-Competent Virtual
Teacher" (arXiv 2408.07587), and the authors' code for all that follows; of the paper's text only abstract and
introduction could be read.

    θ    the global model, teacher and start of the student     z   its outputs on an example    y  the true class
    z'   z with z_y replaced by min_c z_c                        τ   temperature, 1

    θ_u = θ after E epochs of Adam on  mean KL( softmax(z'/τ) ‖ softmax(z_student/τ) )  over what target u forgets
    θ'  = Σ_U (m_u/Σ m) θ_u

So the student learns for its own data what the teacher gives the other classes, as if the true one were the
least likely. The teacher's outputs are those of evaluation, computed once. The paper has one target, whose model is the
new global one; the mean by forgotten examples is for several and for a class. A target that keeps a part distils what
it forgets only. Buffers stay as they were. The authors' code has six other teachers, which are not here; the minimum is
its default. Learning rate, epoch and optimiser are its own for a ResNet-18 with some 5,000 examples a client: with few
steps, as of a small client, they move the model hardly at all.
"""

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from unlearning.evaluation import predict
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
    NUM_RETAINED,
    add_mean_update,
    ask_targets,
    moved,
    replies_of_targets,
    trained_update,
)
from unlearning.verification.difference.holders import TargetSends


class FedQuitParameters(MethodParameters):
    """Parameters of FedQUIT; the defaults are those of the authors' code."""

    epochs: Annotated[int, Safe(high=50)] = Field(
        default=1, ge=1, le=1000, description="passes over the forgotten data"
    )
    # Adam moves each weight by about this much a step, whatever the gradient.
    learning_rate: Annotated[float, Safe(high=0.01)] = Field(
        default=1e-4, gt=0, le=1, description="of Adam; raise it where targets take few steps"
    )
    temperature: Annotated[float, Safe(low=0.1, high=10)] = Field(
        default=1.0, gt=0, le=1000, description="τ, of teacher and student"
    )


class FedQuit(Method[FedQuitParameters]):
    """Distillation from a virtual teacher at the targets, one exchange."""

    Parameters = FedQuitParameters
    info = MethodInfo(
        name="fedquit",
        title="FedQUIT",
        source="Mora et al., FedQUIT: On-Device Federated Unlearning via a Quasi-Competent Virtual Teacher, and code",
        target_sends=TargetSends.FORGOTTEN,
        needs=frozenset({Need.REQUESTER_ONLINE, Need.CLASSIFIER, Need.LOSS_DERIVATIVES}),
        remark="asks the targets only; with the published rate a target of a few steps hardly moves the model",
    )

    def configure(self, problem: Problem[FedQuitParameters], state: UnlearningState) -> Instructions:
        """Let the targets distil."""
        own = problem.parameters
        training = replace(
            problem.training,
            epochs=own.epochs,
            learning_rate=own.learning_rate,
            optimizer="adam",
            weight_decay=0.0,
        )
        values = {"temperature": own.temperature}
        distillation = Instruction(
            operation="distil", model=state.parameters, training=training, values=values
        )
        return ask_targets(problem, distillation)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train on the virtual teacher's answers; the answer is the update."""
        temperature, examples = float(instruction.values["temperature"]), site.forget
        if len(examples):
            outputs = predict(site.task, instruction.model, examples)
            answers = virtual_teacher(outputs, examples.targets.numpy(), temperature)
            soft = torch.from_numpy(answers).to(site.task.dtype)
            examples = examples.with_targets(soft)
        student = replace(site, task=replace(site.task, loss=_Divergence(temperature)))
        reply = trained_update(instruction, student, examples)
        return replace(reply, values={NUM_RETAINED: len(site.retain)})

    def aggregate(self, problem: Problem, state: UnlearningState, replies: Replies) -> UnlearningState:
        """Make the mean of the targets' models the new global one, by numbers of forgotten examples.

        Raises:
            MethodFailed: a target did not answer, or no client holds an example.
        """
        distilled = replies_of_targets(self.info.title, problem, replies)
        parameters = add_mean_update(state.parameters, distilled)
        total = sum(reply.num_examples for reply in distilled.values())
        losses = [reply.num_examples * reply.metrics.get("loss", np.nan) for reply in distilled.values()]
        findings = {
            "mean divergence from the virtual teacher over all steps, in nats": float(sum(losses) / total)
        }
        return moved(problem, state, parameters, findings)

    def cost(self, given: CostSymbols, parameters: FedQuitParameters, preparation: object) -> Cost:
        """Compute 2 P B C_u bytes, F N (E_d + 1/3) C_u FLOPs, P B stored: a forward pass is a third of a step."""
        return given.trips(
            given.num_targets, epochs=parameters.epochs + 1 / 3, storage_bytes=given.model_bytes
        )


def virtual_teacher(
    outputs: NDArray[np.floating], labels: NDArray[np.int64], temperature: float
) -> NDArray[np.float64]:
    """Compute softmax(z'/τ), shape (n, C), of outputs z (n, C): the true class scores as the least likely one."""
    scores = outputs.astype(np.float64) / temperature
    scores[np.arange(len(labels)), labels] = scores.min(axis=1)
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    answers: NDArray[np.float64] = odds / odds.sum(axis=1, keepdims=True)
    return answers


class _Divergence:
    """Mean KL(teacher ‖ student) in nats over a batch, of logits (n, C) and the teacher's probabilities (n, C)."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature

    def __call__(self, logits: Tensor, answers: Tensor) -> Tensor:
        said = functional.log_softmax(logits / self._temperature, dim=1)
        return functional.kl_div(said, answers, reduction="batchmean")
