"""A whole deletion in one process, for those who use the methods as a library: no server, no messages, no recovery.

    method = method_named("puf-special")
    problem = problem_of(method, task, [Target(Granularity.CLIENT, "3")], data, training, unlearning_rate=2.0)
    unlearned = unlearn(method, problem, model, data).parameters

`data` are each client's examples. A client that is left out of it answers nothing, as one that is offline.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from unlearning.methods.method import ClientSite, Instruction, Method, Problem, Reply, UnlearningState
from unlearning.methods.registry import check_supports, validated_parameters
from unlearning.parameters import Vector
from unlearning.requests import NOTHING, Forget, Target
from unlearning.stores import MemoryStore, Store
from unlearning.tasks.task import Examples, Task, forgotten_mask
from unlearning.training import TrainingSettings


def problem_of(
    method: Method,
    task: Task,
    targets: Iterable[Target],
    data: Mapping[str, Examples],
    training: TrainingSettings,
    **parameters: Any,
) -> Problem:
    """Return the problem of forgetting `targets`, with all clients of `data` there; a class concerns each of them.

    Every round trains as `training` says; `dataclasses.replace` changes this and what the problem says of the run.

    Raises:
        UnsupportedRequest: the method cannot serve one of the targets.
        InvalidRequest: a parameter is unknown or out of range.
    """
    forgets: dict[str, Forget] = {}
    for target in targets:
        check_supports(method, target)
        for client in data if target.client_id is None else [target.client_id]:
            forgets[client] = forgets.get(client, NOTHING) | target.forget
    return Problem(
        task=task,
        targets=forgets,
        retained=tuple(sorted(set(data) - set(forgets))),
        num_examples={client: len(examples) for client, examples in data.items()},
        schedule=lambda _: training,
        training=training,
        parameters=validated_parameters(method, parameters),
    )


def unlearn(
    method: Method,
    problem: Problem,
    model: Vector,
    data: Mapping[str, Examples],
    stores: Mapping[str, Store] | None = None,
) -> UnlearningState:
    """Carry out the whole unlearning of `model` (d,); the state's parameters are the unlearned model.

    stores: what each client keeps for the method from training rounds, where it was prepared for.

    Raises:
        MethodFailed: the method cannot go on, or the clients' answers do not suffice.
    """
    state = method.begin(problem, model)
    while not state.finished:
        state = exchange(method, problem, state, data, stores)
    return state


def exchange(
    method: Method,
    problem: Problem,
    state: UnlearningState,
    data: Mapping[str, Examples],
    stores: Mapping[str, Store] | None = None,
) -> UnlearningState:
    """Carry out the next exchange of `state`, both halves; the round that `problem` names moves on with the exchanges.

    Raises:
        MethodFailed: the method cannot go on, or the clients' answers do not suffice.
    """
    problem = replace(problem, round=(problem.round or problem.rounds_trained + 1) + state.exchanges)
    instructions = method.configure(problem, state)
    return method.aggregate(problem, state, answer(method, problem.task, instructions, data, stores))


def answer(
    method: Method,
    task: Task,
    instructions: Mapping[str, Instruction],
    data: Mapping[str, Examples],
    stores: Mapping[str, Store] | None = None,
) -> dict[str, Reply]:
    """Carry out the client half at each client that was asked and has data."""
    replies = {}
    for client, instruction in instructions.items():
        if client in data:
            forget = forgotten_mask(data[client], instruction.forget)
            site = ClientSite(
                task=task,
                forget=data[client].select(forget),
                retain=data[client].select(~forget),
                store=(stores or {}).get(client, MemoryStore()),
            )
            replies[client] = method.client_step(instruction, site)
    return replies
