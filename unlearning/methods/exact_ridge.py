"""Exact ridge: forget by leaving out, of the sums that the head is made of, what belongs to the forgotten.

Source: Quan, Wu, Montana, "Exact Federated Continual Unlearning for Ridge Heads on Frozen Foundation Models" (arXiv
2603.12977). Of its text abstract and introduction could be read: the additive sums, fixed-size messages to add and
to delete, a head that equals the retrained one after every request. What the server keeps and how it solves is ours.

    G_i, B_i  client i's sums X̃ᵀX̃ and X̃ᵀY over its inputs, float64        Θ = (Σ G_i + λI)⁻¹ Σ B_i

A round is no descent. Every client sends its sums beside its model, and takes as its model the head that the server has
made of all sums of earlier rounds: after two rounds the model is the ridge head of all data, and stays. Whole clients
are left out of the sum, and no client is asked. A client that forgets samples or a class sends the sums of what it
keeps, which take the place of its earlier ones: by exact arithmetic the same as to subtract those of what it forgets,
as the paper does, without what cancels. The paper's server keeps the total alone; this one keeps each client's, so
that a client need not be there to be forgotten. Both learn the difference; what that tells is in
`docs/explanation-prepared-methods.md`.

Under secure aggregation the server sees Σ G_i and Σ B_i only, keeps none of them, and makes the head of a round's sum
at once. A deletion is then one exchange with all that stay. Two such sums differ by what one client holds where one of
them lacks it, so sites refuse a sum that lacks a client for another reason (`secure_aggregation.terms`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any, TypeAlias

import numpy as np
from pydantic import Field
from torch import nn

from unlearning.certified.linear_head import linear_layer
from unlearning.errors import MethodFailed, NumericalError, UpdateRefused
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
from unlearning.methods.preparation import FederatedRound, LocalRound, Preparation
from unlearning.methods.ridge_statistics import (
    Head,
    Statistics,
    cast_bound,
    parameters_of,
    size_of,
    solve,
    squared_loss,
)
from unlearning.methods.updates import NUM_RETAINED, change_of, none_keeps
from unlearning.parameters import Models, Vector, norm, weighted_mean
from unlearning.requests import NOTHING, Exclusions
from unlearning.runtime.stores import Arrays, Store, keep_newest, newest
from unlearning.secure_aggregation.addends import MOST_RATE, SecureTotal, SumTerm
from unlearning.secure_aggregation.terms import LEAVING
from unlearning.tasks.task import Task
from unlearning.training import Trained
from unlearning.verification.difference.holders import TargetSends

_MEAN_ROUNDINGS = 8
"""Of each number between a client's sums and their total, beside fixed point."""

_log = getLogger(__name__)

HEAD = "head"
MAX_INPUTS = 8_192
"""With more inputs the sums are over 270 MB per client, and solving for the head takes minutes."""


class SendSums(Preparation):
    """Every client sends its sums and takes over the head that was made of them."""

    replaces_training = True
    has_own_retraining = True
    stands_alone = True
    keeps = "the server each client's sums of products of inputs and labels, of the last two rounds"

    l2: float = Field(default=1.0, ge=1e-9, le=1e12, description="λ, of ½ Σ‖error‖² + λ/2 ‖head‖²")

    def send(self, number: int, store: Store, forgotten: Exclusions) -> Arrays:
        """Send the head of all that clients have sent in earlier rounds; empty where they have sent nothing.

        Raises:
            NumericalError: float64 cannot solve for it.
        """
        known = kept_statistics(store, before=number)
        staying = [known[client] for client in sorted(known) if not forgotten.is_forgotten(client)]
        return {HEAD: solve(staying, self.l2).matrix if staying else np.zeros((0, 0))}

    def check(self, sent: Arrays, returned: Arrays) -> None:
        """Refuse sums that are none, or of another model than the others'."""
        statistics = Statistics.from_client(returned)
        if sent[HEAD].size and statistics.moments.shape != sent[HEAD].shape:
            raise UpdateRefused(
                f"Its sums are of a head of shape {statistics.moments.shape}, the federation's is {sent[HEAD].shape}."
            )

    def train(self, work: LocalRound, ordinary: Callable[[], Trained]) -> Trained:
        """Return the sums of all examples, and the head that was sent as the model.

        Raises:
            MethodFailed: the model is not one linear layer.
        """
        if len(work.examples) == 0:
            return ordinary()  # which says so
        layer = layer_of(work.task)
        work.returns.update(Statistics.of(work.examples, layer).to_arrays())
        head = work.arrays[HEAD]
        model = parameters_of(head, layer, work.model) if head.size else work.model
        outputs = predict(work.task, model, work.examples)
        return Trained(model, len(work.examples), squared_loss(outputs, work.examples.targets.numpy()))

    def combine(self, before: Vector, models: Models) -> Vector:
        """Return the one head that all have taken over, to the bit; the mean, should they differ."""
        _, first = next(iter(models.values()))
        if all(np.array_equal(first, model) for _, model in models.values()):
            return first
        return weighted_mean(models)

    def sum_size(self, task: Task, model: Vector) -> int:
        """Return how many numbers the sums are."""
        return size_of(layer_of(task))

    def sum_terms(self, update: Vector, num_examples: int, returned: Arrays) -> list[SumTerm]:
        """Return the client's sums as a term; the model is that of the server."""
        return _terms(Statistics.from_arrays(returned))

    def model_of_sum(self, task: Task, before: Vector, total: SecureTotal) -> Vector:
        """Solve for the head of the sum.

        Raises:
            NumericalError: a client has shortened its sums, or float64 cannot solve for the head.
        """
        layer = layer_of(task)
        return parameters_of(solve([_statistics_of(total, layer)], self.l2).matrix, layer, before)

    def keep(self, done: FederatedRound, store: Store) -> None:
        """Keep each client's newest sums, and those before, from which a round that is done again starts."""
        for client in sorted(done.models):
            statistics = Statistics.from_arrays(done.arrays[client])
            if statistics.moments.size != done.before.size:
                _log.warning("The sums of client %s are of another model and are not used.", client)
                continue
            keep_newest(store, client, done.number, statistics.to_arrays())

    def problems(self, task: Task, num_clients: int) -> list[str]:
        """Say where the model is not one linear layer, or has too many inputs."""
        try:
            layer = layer_of(task)
        except MethodFailed as exc:
            return [f"prepare: exact-ridge: {exc}"]
        if layer.in_features <= MAX_INPUTS:
            return []
        return [
            f"prepare: exact-ridge: the sums of {layer.in_features:,} inputs are too large (at most {MAX_INPUTS:,}). "
            "Give it features of a frozen network in place of raw inputs."
        ]


_Problem: TypeAlias = Problem[MethodParameters, SendSums]


class ExactRidge(Method[MethodParameters, SendSums]):
    """The head of the sums without what is forgotten; asks only those who keep a part of their examples."""

    Parameters = MethodParameters
    info = MethodInfo(
        name="exact-ridge",
        title="Exact ridge",
        source="Quan et al., Exact Federated Continual Unlearning for Ridge Heads on Frozen Foundation Models",
        target_sends=TargetSends.SUMS,
        sums_suffice=True,
        needs=frozenset({Need.PREPARATION, Need.CLASSIFIER, Need.LOSS_DERIVATIVES, Need.MEAN_LOSS}),
        remark=(
            "exact to rounding, with the bound in the report; trains one linear layer with squared loss itself"
        ),
        cost_remark="under secure aggregation all that stay are asked; messages carry settings too",
        is_exact=True,
        replies_are_updates=False,
        replies_have_any_length=True,
        preparation=SendSums,
        assumes_fedavg="its model is solved from the clients' sums and is no aggregate of models",
    )

    def begin(self, problem: _Problem, parameters: Vector) -> UnlearningState:
        """Solve without whole clients at once; where a target keeps a part, its sums have to come first.

        Raises:
            MethodFailed: the federation was not prepared, the model is not one linear layer, or no sums of a
                client that stays are kept.
        """
        known = kept_statistics(self.kept(problem).store)
        layer_of(problem.task)
        state = UnlearningState(parameters=parameters)
        if problem.partial or problem.only_sums:
            return state
        staying = {client: known[client] for client in known if client not in problem.targets}
        return replace(_solved(problem, state, staying, asked=()), finished=True)

    def configure(self, problem: _Problem, state: UnlearningState) -> Instructions:
        """Ask those who keep a part for the sums of that, or all that stay; the model need not travel.

        Raises:
            MethodFailed: of sums alone, where a client that stays is not there, whose sums they would show by lacking
                them.
        """
        nothing = np.zeros(0, dtype=state.parameters.dtype)
        asked, values = problem.partial, {}
        if problem.only_sums:
            leaving = sorted(set(problem.targets) - set(problem.partial))
            asked, values = tuple(sorted({*problem.retained, *problem.partial})), {LEAVING: leaving}
            if absent := sorted(set(problem.num_examples) - {*asked, *leaving}):
                raise MethodFailed(
                    f"Client(s) {', '.join(absent)} are not there, and a sum without them would show theirs. Retry "
                    "when all clients are online.",
                    retryable=True,
                    code="no-client-online",
                )
        return {
            client: Instruction(
                operation="sums",
                model=nothing,
                training=problem.training,
                forget=problem.targets.get(client, NOTHING),
                values=values,
            )
            for client in asked
        }

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Return the sums of what is kept."""
        return Reply(
            vector=np.zeros(0, dtype=instruction.model.dtype),
            num_examples=len(site.forget),
            arrays=Statistics.of(site.retain, layer_of(site.task)).to_arrays(),
            values={NUM_RETAINED: len(site.retain)},
        )

    def aggregate(self, problem: _Problem, state: UnlearningState, replies: Replies) -> UnlearningState:
        """Solve with the new sums in the place of the old; they are kept for rounds and later deletions.

        Of a class everybody may have had examples: who is not there to send new sums is left out until it does.

        Raises:
            MethodFailed: a client that is to forget a part did not answer, or none holds an example of it.
            UpdateRefused: sums are malformed, or of another model.
        """
        kept = self.kept(problem)
        absent = sorted(set(problem.partial) - set(replies))
        if absent:
            raise MethodFailed(
                f"Exact ridge needs the sums of what client(s) {', '.join(absent)} keep; none came.",
                retryable=True,
                code="no-answer",
            )
        of_class = any(forget.classes for forget in problem.targets.values())
        if of_class and not any(replies[client].num_examples for client in problem.partial):
            raise MethodFailed(
                "No client holds an example of what is to be forgotten; there is nothing to unlearn.",
                retryable=False,
                code="nothing-to-forget",
            )
        renewed = {}
        for client in problem.partial:
            try:
                renewed[client] = Statistics.from_client(replies[client].arrays)
            except UpdateRefused as exc:
                raise UpdateRefused(f"Client {client}: {exc}") from exc
            if renewed[client].moments.size != state.parameters.size:
                raise UpdateRefused(f"The sums of client {client} are of another model.")
        staying = {}
        for client in kept.store.list_keys():
            entry = newest(kept.store, client)
            if entry is not None and not of_class and client not in problem.targets:
                staying[client] = Statistics.from_arrays(entry[1])
                kept.next_store.save(client, *entry)
        for client, statistics in renewed.items():
            kept.next_store.save(client, problem.round, statistics.to_arrays())
        following = _solved(problem, state, {**staying, **renewed}, asked=problem.partial)
        return following.advance(following.parameters, finished=True)

    def sum_size(self, task: Task, model: Vector) -> int:
        """Return how many numbers the sums are."""
        return size_of(layer_of(task))

    def sum_terms(self, instruction: Instruction, reply: Reply) -> list[SumTerm]:
        """Return the sums of what is kept as a term."""
        return _terms(Statistics.from_arrays(reply.arrays))

    def after_sum(self, problem: _Problem, state: UnlearningState, total: SecureTotal) -> UnlearningState:
        """Solve for the head of the sum over all that stay.

        Raises:
            MethodFailed: a client has shortened its sums, none has an example, or float64 cannot solve for the head.
        """
        try:
            staying = {"all": _statistics_of(total, layer_of(problem.task))}
        except NumericalError as exc:
            raise MethodFailed(str(exc), retryable=False, code="no-sum") from exc
        following = _solved(problem, state, staying, asked=total.clients)
        findings = {**following.findings, "clients whose sums remain": len(total.clients)}
        return replace(following, findings=findings).advance(following.parameters, finished=True)

    def cost(self, given: CostSymbols, parameters: MethodParameters, preparation: SendSums | None) -> Cost:
        """Compute S C_p bytes, 2 N D (D + C) C_p FLOPs, 2 S C stored; S = 8 (D (D + 1)/2 + D C) bytes of sums.

        D inputs with the 1, so P = D C for C classes. In training each client sends S a round beside the model.
        """
        classes = max(given.num_classes, 1)
        inputs = given.num_parameters // classes
        sums = 8 * (inputs * (inputs + 1) // 2 + inputs * classes)
        work = 2.0 * given.examples_per_client * inputs * (inputs + classes)
        return Cost(sums * given.num_partial, work * given.num_partial, 2 * sums * given.num_clients)


def layer_of(task: Task) -> nn.Linear:
    """Return the one linear layer that the model is.

    Raises:
        MethodFailed: it is something else.
    """
    layer = linear_layer(task)
    if layer is None or task.score_name != "accuracy" or layer.out_features != task.num_classes:
        raise MethodFailed(
            f'Exact ridge solves for one linear layer over classes (model = "logistic"); the model of {task.name} is '
            "something else. Choose another method.",
            retryable=False,
            code="not-linear",
        )
    return layer


def kept_statistics(store: Store, *, before: int | None = None) -> dict[str, Statistics]:
    """Return each client's newest sums, of rounds before `before`."""
    entries = {client: newest(store, client, before=before) for client in store.list_keys()}
    return {client: Statistics.from_arrays(entry[1]) for client, entry in entries.items() if entry}


def _terms(sums: Statistics) -> list[SumTerm]:
    """Return a client's sums as a term of a sum, at the largest rate, so that they are hardly ever shortened."""
    return [SumTerm(update=sums.per_example() / MOST_RATE, count=sums.num_examples, rate=MOST_RATE)]


def _statistics_of(total: SecureTotal, layer: nn.Linear) -> Statistics:
    """Return the sums over all clients.

    Raises:
        NumericalError: a client has shortened its own.
    """
    if total.num_clipped:
        raise NumericalError(
            f"{total.num_clipped} client(s) have inputs so large that they had to shorten their sums. Scale the "
            "inputs, or raise secure-clip-norm."
        )
    return Statistics.of_mean(
        total.step,
        layer,
        total.num_examples,
        coarseness=total.coarseness,
        roundings=_MEAN_ROUNDINGS + len(total.clients),
    )


def _solved(
    problem: _Problem,
    state: UnlearningState,
    staying: Mapping[str, Statistics],
    *,
    asked: Sequence[str],
) -> UnlearningState:
    """Return `state` with the head of `staying`, and what is to be said of it."""
    kept = problem.kept
    assert kept is not None, "the caller has looked"
    if not any(one.num_examples for one in staying.values()):
        if not problem.staying:
            raise none_keeps(ExactRidge.info.title, problem)
        raise MethodFailed(
            "No sums of a client that stays are kept. Let a training round pass, then retry.",
            retryable=True,
            code="nothing-kept",
        )
    try:
        head = solve([staying[client] for client in sorted(staying)], kept.preparation.l2)
    except NumericalError as exc:
        raise MethodFailed(str(exc), retryable=False, code="no-solution") from exc
    parameters = parameters_of(head.matrix, layer_of(problem.task), state.parameters)
    findings = {
        **_certificate(head, parameters),
        "clients whose sums remain": len(staying),
        "examples in them": sum(one.num_examples for one in staying.values()),
        "clients asked": len(asked),
        "λ": kept.preparation.l2,
        "size of the kept sums in bytes": kept.store.num_bytes(),
        **change_of(problem.task, state.parameters, parameters),
    }
    return replace(state, parameters=parameters, findings=findings)


def _certificate(head: Head, parameters: Vector) -> dict[str, Any]:
    """State how far the model is from retraining, by bounds that were computed."""
    cast = cast_bound(head.matrix, parameters)
    bound = head.bound + cast
    statement = (
        f"exact: ‖θ − θ*‖ ≤ {bound:.3g}, θ* the minimiser without what is forgotten, to infinite precision; so "
        f"‖θ − θ_retrain‖ ≤ {2 * bound:.3g} for a retraining computed in the same way. It holds if the clients' sums "
        "are of their data."
    )
    return {
        "certificate": statement,
        "bound on ‖θ − θ*‖": bound,
        "of it by the model's type": cast,
        "‖θ‖": norm(parameters),
    }
