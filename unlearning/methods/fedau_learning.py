"""FedAU during learning: a second head learns in every round what the model should say once it has forgotten.

Source: Gu et al., "Unlearning during Learning: An Efficient Federated Machine Unlearning Method", and the authors'
code. The form that needs no preparation is `unlearning.methods.fedau`.

    W_head  weight and bias of the model's last linear layer      W_aux  of a second head, client u's own
    γ       how much of its own auxiliary head a client keeps     a      weight of the auxiliary head, 0.9

Each round a client that may leave starts from trunk and head of the global model and from

    clients, samples:  W_aux ← (1 − γ) · W_head + γ · W_aux of the round before       class:  W_aux as it was

and descends CE(head, y) + CE(aux, y_aux). y_aux is a wrong label, always the same one for an example, where the
example may be forgotten, else y; for a class it is the class that may be forgotten, whatever the example. Only trunk
and head are sent; the auxiliary head stays with the client. A deletion costs one message a target:

    clients, samples:  W' = (1 − a) · W_head + a · mean_u W_aux                       class:  W' = W_head − mean_u W_aux
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias, cast

import numpy as np
import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor, nn

from unlearning.errors import MethodFailed
from unlearning.methods.classifier_head import classifier_head, head_in, head_slots, size_of
from unlearning.methods.costs import Cost, CostSymbols
from unlearning.methods.fedau import mix_heads
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
from unlearning.methods.preparation import ClientPreparation, Listed, LocalRound
from unlearning.methods.updates import ask_targets, moved, replies_of_targets
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target
from unlearning.runtime.stores import keep_newest, newest
from unlearning.tasks.inputs import as_outputs
from unlearning.tasks.task import Examples, Task
from unlearning.training import Trained, model_with, task_of, train, untrained_parameters
from unlearning.verification.difference.holders import TargetSends


class FedAuLearningParameters(MethodParameters):
    """Parameters of FedAU during learning; the default is the authors'."""

    weight: float = Field(default=0.9, ge=0, le=1, description="a; for clients and samples")


class AuxiliaryHead(ClientPreparation):
    """A client that may leave trains a second head: for whole clients, or samples by id, or one class.

    Lists are divided by commas.
    """

    replaces_training = True
    has_own_retraining = True
    keeps = "each client that may leave its last two auxiliary heads"

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    samples: Listed = Field(default=frozenset(), description="the ids; else whole clients")
    class_label: int | None = Field(default=None, alias="class", ge=0)
    gamma: float = Field(default=0.5, ge=0, le=1)
    seed: int = Field(default=0, ge=0, description="of the wrong labels")

    @model_validator(mode="after")
    def _one_kind(self) -> "AuxiliaryHead":
        if self.samples and self.class_label is not None:
            raise ValueError("one auxiliary head forgets samples or a class; give one of them")
        return self

    @property
    def named_samples(self) -> frozenset[str]:
        """Return the samples that may be forgotten later."""
        return self.samples

    @property
    def key(self) -> str:
        """Return the key in a client's store: heads that were trained for something else are other heads."""
        purpose = [self.seed, self.class_label, *sorted(self.samples)]
        return f"auxiliary-head {hashlib.sha256(repr(purpose).encode()).hexdigest()[:16]}"

    def train(self, work: LocalRound, ordinary: Callable[[], Trained]) -> Trained:
        """Train trunk and both heads; trunk and head come back.

        Raises:
            MethodFailed: the model has no classifier head.
        """
        if not self.has(work.client_id) or len(work.examples) == 0:
            return ordinary()
        slots = head_slots(work.task)
        own = head_in(work.model, slots)
        for key in set(work.store.list_keys()) - {self.key}:
            work.store.erase(key)
        saved = newest(work.store, self.key, before=work.number)
        head = (
            cast(Vector, saved[1]["head"])
            if saved is not None
            else head_in(untrained_parameters(work.task, work.training.seed), slots)
        )
        if self.class_label is None:
            head = ((1 - self.gamma) * own + self.gamma * head).astype(own.dtype)
        labels = self.labels(work.examples, work.task.num_classes)
        examples = work.examples.with_targets(torch.stack([work.examples.targets, labels], dim=1))
        loss = _BothLosses(work.task)
        task = replace(task_of(work.task, _TwoHeads(model_with(work.task, work.model))), loss=loss)
        trained = train(task, np.concatenate([work.model, head]), examples, work.training)
        keep_newest(work.store, self.key, work.number, {"head": trained.parameters[work.model.size :]})
        return Trained(trained.parameters[: work.model.size], trained.num_examples, loss.mean_of_head)

    def labels(self, examples: Examples, num_classes: int) -> Tensor:
        """Return what the auxiliary head learns of each example, shape (n,), int64."""
        if self.class_label is not None:
            return torch.full_like(examples.targets, self.class_label)
        wrong = torch.tensor([_shift(self.seed, str(name), num_classes) for name in examples.ids.tolist()])
        if self.samples:
            wrong[torch.from_numpy(~np.isin(examples.ids, sorted(self.samples)))] = 0
        return (examples.targets + wrong) % num_classes

    def describe(self) -> str:
        """Say what it prepares for."""
        clients = f"client(s) {', '.join(sorted(self.clients))}" if self.clients else "every client"
        if self.class_label is not None:
            return f"class {self.class_label}"
        if self.samples:
            return f"{len(self.samples):,} named sample(s) of {clients}, all together"
        return f"{clients}, whole"

    def refusal(self, target: Target) -> str:
        """Say what is missing where no auxiliary head was trained for the target."""
        able, wanted = self.describe(), ""
        match target.granularity:
            case Granularity.CLASS if target.class_label != self.class_label:
                wanted = f"class={target.class_label}"
            case Granularity.SAMPLE if not target.sample_ids <= self.samples:
                wanted = "samples=ID,ID,…"
            case Granularity.CLIENT if self.samples or self.class_label is not None:
                wanted = f"clients={target.client_id}"
        if not wanted and target.client_id is not None and not self.has(target.client_id):
            wanted = f"clients={','.join(sorted({*self.clients, target.client_id}))}"
        if not wanted:
            return ""
        return f'it was prepared for {able}. That would need prepare = "fedau-learning {wanted}" in training.'

    def problems(self, task: Task, num_clients: int) -> list[str]:
        """Say where the model has no classifier head, or there is no such class."""
        label = self.class_label
        try:
            head_slots(task)
        except MethodFailed as exc:
            return [f"prepare: fedau-learning: {exc}"]
        if label is not None and label >= task.num_classes:
            return [f"prepare: fedau-learning: the classes are 0 to {task.num_classes - 1}, got {label}."]
        return []


_Problem: TypeAlias = Problem[FedAuLearningParameters, AuxiliaryHead]


class FedAuLearning(Method[FedAuLearningParameters, AuxiliaryHead]):
    """FedAU during learning."""

    Parameters = FedAuLearningParameters
    info = MethodInfo(
        name="fedau-learning",
        title="FedAU, during learning",
        source="Gu et al., Unlearning during Learning, and the authors' code",
        target_sends=TargetSends.OWN,
        needs=frozenset(
            {Need.REQUESTER_ONLINE, Need.CLASSIFIER_HEAD, Need.PREPARATION, Need.LOSS_DERIVATIVES}
        ),
        remark="forgets what it was prepared for: clients, or samples, or one class, named before training",
        cost_remark=(
            "the formula is that of one target; a target gets the whole model, as with every instruction, and sends "
            "its head"
        ),
        replies_are_updates=False,
        replies_have_any_length=True,
        preparation=AuxiliaryHead,
        assumes_fedavg="its auxiliary heads are FedAvg's means beside the model, from whose head they are subtracted",
    )

    def begin(self, problem: _Problem, parameters: Vector) -> UnlearningState:
        """Begin; one exchange will do.

        Raises:
            MethodFailed: there are no auxiliary heads, or none for what is to be forgotten.
        """
        state = super().begin(problem, parameters)
        prepared = self.kept(problem).preparation
        for target in _targets(problem):
            if reason := prepared.refusal(target):
                raise MethodFailed(
                    f"{self.info.title} cannot forget {target.describe()}: {reason}",
                    retryable=False,
                    code="not-prepared-for-target",
                )
        return state

    def configure(self, problem: _Problem, state: UnlearningState) -> Instructions:
        """Ask the targets for their auxiliary heads; the model itself need not travel."""
        asked = Instruction(
            operation="auxiliary-head",
            model=np.zeros(0, dtype=state.parameters.dtype),
            training=problem.training,
            values={"key": self.kept(problem).preparation.key},
        )
        return ask_targets(problem, asked)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Return the newest auxiliary head, flat; `has_head` says whether there is one."""
        kept = newest(site.store, str(instruction.values["key"]))
        if kept is not None:
            head = cast(Vector, kept[1]["head"])
        else:
            head = np.zeros(size_of(head_slots(site.task)), dtype=instruction.model.dtype)
        return Reply(vector=head, num_examples=len(site.forget), values={"has_head": kept is not None})

    def aggregate(self, problem: _Problem, state: UnlearningState, replies: Replies) -> UnlearningState:
        """Mix the heads, or subtract for a class.

        Raises:
            MethodFailed: a target did not answer or has no auxiliary head, or no client holds an example.
            UpdateRefused: a head has another length than the model's.
        """
        prepared = self.kept(problem).preparation
        is_class = prepared.class_label is not None
        holding = replies_of_targets(self.info.title, problem, replies)
        # The class's label was every example's, so also those have learnt it who hold none of its examples.
        asked = {client: replies[client] for client in problem.targets} if is_class else holding
        heads = [asked[client].vector for client in sorted(asked) if asked[client].values.get("has_head")]
        if not heads or (not is_class and len(heads) < len(asked)):
            without = sorted(client for client, reply in asked.items() if not reply.values.get("has_head"))
            raise MethodFailed(
                f"Client(s) {', '.join(without)} keep no auxiliary head: they have not trained since the "
                "federation was prepared, or since something of theirs was forgotten. Choose another method, or "
                "cancel the request and file it again after a round in which they take part.",
                retryable=is_class,  # a target of its own does not train while it waits to be forgotten
                code="nothing-kept",
            )
        share = problem.parameters.weight
        own, auxiliary = (1.0, -1.0) if is_class else (1 - share, share)
        parameters = mix_heads(problem.task, state.parameters, heads, own=own, auxiliary=auxiliary)
        findings = {"auxiliary heads used": len(heads), "prepared for": prepared.describe()}
        return moved(problem, state, parameters, findings)

    def cost(
        self,
        given: CostSymbols,
        parameters: FedAuLearningParameters,
        preparation: AuxiliaryHead | None,
    ) -> Cost:
        """Compute 2 P_c B bytes, C P_c B stored: each client's auxiliary head."""
        return Cost(2 * given.head_bytes, 0.0, given.num_clients * given.head_bytes)


def _shift(seed: int, example_id: str, num_classes: int) -> int:
    """Return 1 to C − 1, by the seed and the example's id: how far the wrong label is from the right one."""
    digest = hashlib.sha256(f"{seed}:{example_id}".encode()).digest()
    return 1 + int.from_bytes(digest[:8], "big") % (num_classes - 1)


class _TwoHeads(nn.Module):
    """A model and a second head on the same features; outputs (n, 2C), the model's own first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._head_name, head = classifier_head(self.model)
        assert head is not None, "the caller has looked"
        # without weights, which are loaded: drawing some would move torch's global random state
        self.auxiliary = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Linear, head.in_features, head.out_features, bias=head.bias is not None
        )
        self._features: list[Tensor] = []
        head.register_forward_pre_hook(self._note_features)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        self._features.clear()
        outputs = as_outputs(self.model, self.model(*inputs, **named))
        if [one.shape[:-1] for one in self._features] == [outputs.shape[:1]]:
            return torch.cat([outputs, self.auxiliary(self._features[0])], dim=1)
        return torch.cat([outputs, self._in_its_place(*inputs, **named)], dim=1)

    def _note_features(self, _head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features.extend(inputs)

    def _in_its_place(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Compute what the model gives with the second head (n, C), for one that is applied to tokens and then pooled.

        Running statistics stay as the model's own pass has left them.
        """
        prefix = f"{self._head_name}." if self._head_name else ""
        values = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        values |= {f"{prefix}{name}": value for name, value in self.auxiliary.named_parameters()}
        # tie_weights would leave this head in a module that the model has twice
        found = torch.func.functional_call(self.model, values, inputs, named, tie_weights=False)
        return as_outputs(self.model, found)


class _BothLosses:
    """CE(head, y) + CE(aux, y_aux) for targets (n, 2); remembers the head's own loss."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._total, self._seen = 0.0, 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        classes = self._task.num_classes
        own = self._task.loss(outputs[:, :classes], targets[:, 0])
        self._total += own.item() * len(targets)
        self._seen += len(targets)
        return own + self._task.loss(outputs[:, classes:], targets[:, 1])

    @property
    def mean_of_head(self) -> float:
        return self._total / self._seen


def _targets(problem: Problem) -> Iterable[Target]:
    """Return the problem's targets, as requests would name them."""
    for client, forget in problem.targets.items():
        if forget.everything:
            yield Target(Granularity.CLIENT, client)
        if forget.sample_ids:
            yield Target(Granularity.SAMPLE, client, forget.sample_ids)
        for label in sorted(forget.classes):
            yield Target(Granularity.CLASS, class_label=label)
