"""A whole deletion in one process: both halves of a method, one exchange after another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from unlearning.errors import MethodFailed
from unlearning.local.checks import check_sites, check_targets, checked_targets, checked_training
from unlearning.local.learning import Learnt, Sites, forget_sets, without
from unlearning.methods.method import (
    ClientSite,
    Instructions,
    Method,
    Problem,
    Reply,
    UnlearningState,
)
from unlearning.methods.registry import check_supports, method_named, validated_parameters
from unlearning.methods.unlearned_model import check_unlearned
from unlearning.methods.updates import NUM_RETAINED, RETAINED_UPDATE, num_retained, split_buffers
from unlearning.parameters import Vector, count_not_finite
from unlearning.requests import Exclusions, Target
from unlearning.runtime.display import table
from unlearning.runtime.stores import MemoryStore, Store
from unlearning.tasks.task import Task, forgotten_mask
from unlearning.training import TrainingSettings, local_seed

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlearned:
    """A deletion that has been carried out.

    state: the method's last; its `findings` say what it saw. learnt: the unlearned model with what is kept from now on,
    to recover by `learn` on what is retained, or to forget more.
    """

    state: UnlearningState
    learnt: Learnt

    @property
    def parameters(self) -> Vector:
        """The unlearned model (d,), before any recovery."""
        return self.state.parameters

    def state_dict(self, task: Task) -> dict[str, Any]:
        """Return the unlearned model for `load_state_dict`; see `Learnt.state_dict`."""
        return self.learnt.state_dict(task)

    def _repr_html_(self) -> str:
        rows = [("exchanges with clients", self.state.exchanges), *self.state.findings.items()]
        return table("Deletion", (), rows)

    def plot(self) -> "Axes":
        """Draw the training loss of the rounds before; see `Learnt.plot`."""
        return self.learnt.plot()


def unlearn(
    method: str | Method,
    task: Task,
    learnt: Learnt,
    sites: Sites,
    targets: Iterable[Target],
    *,
    noise_key: bytes | None = None,
    **parameters: Any,
) -> Unlearned:
    """Forget `targets`, and what methods kept of them; `learnt` stays as it is.

    What was forgotten earlier takes no part and counts nowhere, also where `sites` still has it.

    method: one of the registry by its name, or any. parameters: the method's own.
    noise_key: 32 bytes that a method's noise is derived from, and with which it can be taken off; None: the system's
        entropy.

    Raises:
        UnknownMethod: there is none of that name.
        UnsupportedRequest: it cannot serve a target, or does not go with the task, its training or what was prepared.
        InvalidRequest: a parameter is unknown or out of range, or there is no such class.
        UnknownClient: there is no such client. AlreadyForgotten: of a target nothing is left, or not all samples.
        DataError: there is no such sample, no example of the class, or a site's examples do not go with the task.
        MethodFailed: the method cannot go on, or the clients' answers do not suffice.
        ModelRefused: it gave a model that a federation would not use.
        AppError: the task's functions do not fit the examples.
    """
    chosen = method if isinstance(method, Method) else method_named(method)
    wanted = checked_targets(targets)
    given_sites, sites = sites, without(sites, learnt.forgotten)
    check_sites(task, learnt.learns(task), sites, learnt.parameters)
    check_targets(chosen, wanted, task, learnt.prepared, given_sites, learnt.num_examples, learnt.forgotten)
    given = problem_of(chosen, learnt.learns(task), wanted, sites, learnt.training, **parameters)
    rewritten = MemoryStore()
    given = replace(
        given,
        rounds_trained=learnt.rounds,
        round=learnt.next_round,
        num_examples=learnt.num_examples or given.num_examples,
        schedule=learnt.schedule,
        kept=learnt.kept_for(chosen.info.name, rewritten),
        noise_key=noise_key,
    )
    stores = learnt.kept_at_sites(chosen.info.name)
    state, replies = chosen.begin(given, learnt.parameters), dict[str, Reply]()
    while not state.finished:
        before = state.parameters
        state, replies = exchange(chosen, given, state, sites, stores)
        check_unlearned(given.task, state.parameters, None if state.has_noise else before)
    after = replace(
        _without_traces(learnt, chosen, wanted, sites, rewritten),
        parameters=state.parameters,
        exchanges=learnt.exchanges
        + max(1, state.exchanges),  # a federation counts one where no client has an instruction
    )
    kept = {client: num_retained(reply) for client, reply in replies.items() if NUM_RETAINED in reply.values}
    counts = {**given.num_examples, **kept}
    left = {client: count for client, count in counts.items() if not after.forgotten.is_forgotten(client)}
    return Unlearned(state=state, learnt=replace(after, num_examples=left))


def problem_of(
    method: Method,
    task: Task,
    targets: Iterable[Target],
    sites: Sites,
    training: TrainingSettings,
    **parameters: Any,
) -> Problem:
    """Return the problem of forgetting `targets`, with all clients of `sites` there; a class concerns each of them.

    Every round trains as `training` says, whose seed is the run's; `dataclasses.replace` changes this and what the
    problem says of the run. `task` is what is learnt: an ensemble where SISA is prepared for.

    Raises:
        UnsupportedRequest: the method cannot serve one of the targets.
        InvalidRequest: a parameter is unknown or out of range, or there is no target.
        ConfigurationError: a value of `training` is out of range.
    """
    wanted, training = checked_targets(targets), checked_training(training)
    for target in wanted:
        check_supports(method, target)
    forgets = forget_sets(wanted, sites)
    return Problem(
        task=task,
        targets=forgets,
        retained=tuple(sorted(set(sites) - set(forgets))),
        seed=training.seed,
        num_examples={client: len(examples) for client, examples in sites.items()},
        schedule=lambda _: training,
        training=training,
        parameters=validated_parameters(method, parameters),
    )


def carry_out(
    method: Method,
    problem: Problem,
    model: Vector,
    sites: Sites,
    stores: Mapping[str, Store] | None = None,
) -> UnlearningState:
    """Carry out the whole unlearning of `model` (d,); the state's parameters are the unlearned model.

    stores: what each client keeps for the method from training rounds, where it was prepared for.

    Raises:
        MethodFailed: the method cannot go on, or the clients' answers do not suffice.
    """
    state = method.begin(problem, model)
    while not state.finished:
        state, _ = exchange(method, problem, state, sites, stores)
    return state


def exchange(
    method: Method,
    problem: Problem,
    state: UnlearningState,
    sites: Sites,
    stores: Mapping[str, Store] | None = None,
) -> tuple[UnlearningState, dict[str, Reply]]:
    """Carry out the next exchange of `state`, both halves; return the state after it, and the answers.

    The round that `problem` names moves on with the exchanges.

    Raises:
        MethodFailed: the method cannot go on, or the clients' answers do not suffice.
    """
    problem = replace(problem, round=(problem.round or problem.rounds_trained + 1) + state.exchanges)
    instructions = method.configure(problem, state)
    replies = answer(method, problem, instructions, sites, stores)
    return method.aggregate(problem, state, replies), replies


def answer(
    method: Method,
    problem: Problem,
    instructions: Instructions,
    sites: Sites,
    stores: Mapping[str, Store] | None = None,
) -> dict[str, Reply]:
    """Carry out the client half at each client that has an instruction and data, with its own seed of the round.

    The answers are as the server half gets them: `Reply.buffers` apart.
    """
    replies = {}
    for client, instruction in instructions.items():
        if client in sites:
            forget = forgotten_mask(sites[client], instruction.forget)
            site = ClientSite(
                task=problem.task,
                forget=sites[client].select(forget),
                retain=sites[client].select(~forget),
                store=(stores or {}).get(client, MemoryStore()),
            )
            training = replace(instruction.training, seed=local_seed(problem.seed, client, problem.round))
            reply = method.client_step(replace(instruction, training=training), site)
            _check_finite(client, reply)
            replies[client] = split_buffers(problem.task, method.info, reply)
    return replies


def _check_finite(client: str, reply: Reply) -> None:
    """Refuse an answer of training that has diverged, as a federation refuses its client.

    Raises:
        MethodFailed: a value is not finite.
    """
    beside = reply.arrays.get(RETAINED_UPDATE, reply.vector)
    if count_not_finite(reply.vector) or count_not_finite(beside):
        raise MethodFailed(
            f"What client {client} computed is not finite: training diverged. Lower the learning rate.",
            retryable=False,
            code="diverged",
        )


def _without_traces(
    learnt: Learnt, method: Method, targets: tuple[Target, ...], sites: Sites, rewritten: MemoryStore
) -> Learnt:
    """Return `learnt` with what is kept from now on, nothing of what is forgotten.

    rewritten: what the method has written in the place of what was kept for it, if anything.
    """
    gone, stores = Exclusions().including(targets), dict(learnt.stores)
    concerned = forget_sets(targets, [*sites, *learnt.site_stores])
    site_stores = {client: kept for client, kept in learnt.site_stores.items() if client not in concerned}
    prepared = {}
    for name, one in learnt.prepared.items():
        is_own = name == method.info.name
        is_rewritten = is_own and bool(rewritten.list_keys())
        stores[name] = rewritten if is_rewritten else stores[name].copy()
        survives = one.survives(is_own=is_own, moves_model=method.info.moves_model)
        if survives and one.erase(stores[name], gone, until=learnt.next_round - 1, rewritten=is_rewritten):
            prepared[name] = one
        else:
            del stores[name]
    return replace(
        learnt,
        prepared=prepared,
        stores=stores,
        site_stores=site_stores,
        forgotten=learnt.forgotten.including(targets),
    )
