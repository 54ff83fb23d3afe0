"""What methods keep from training rounds, made by running such rounds in this process."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from unlearning.methods.method import Method, PreparedStore
from unlearning.methods.preparation import FederatedRound, LocalRound, PreparationOptions
from unlearning.parameters import Vector
from unlearning.requests import Exclusions
from unlearning.stores import MemoryStore
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, initial_parameters, local_seed, train


def task_for(method: Method, task: Task, options: PreparationOptions | None = None) -> Task:
    """What a federation learns that prepares for the method: an ensemble where that trains one."""
    preparation = method.info.preparation
    if preparation is None:
        return task
    return preparation.prepared_task(options or preparation.Options(), task)


def trained_with(
    method: Method,
    task: Task,
    data: Mapping[str, Examples],
    training: TrainingSettings,
    *,
    rounds: int,
    options: PreparationOptions | None = None,
    seed: int = 0,
) -> tuple[Vector, dict[str, MemoryStore], PreparedStore | None]:
    """FedAvg with the method's preparation: the model, what each client keeps, and what the server keeps."""
    stores = {client: MemoryStore() for client in data}
    model, preparation, server = initial_parameters(task, seed), method.info.preparation, MemoryStore()
    if preparation is None:
        return model, stores, None
    options = options or preparation.Options()
    for number in range(1, rounds + 1):
        models: dict[str, tuple[int, Vector]] = {}
        sent = preparation.send(options, number, server, Exclusions())
        returned: dict[str, dict[str, NDArray[Any]]] = {}
        for client in sorted(data):
            if not preparation.takes_part(options, client, number):
                continue
            settings = replace(training, seed=local_seed(seed, client, number))
            work = LocalRound(
                client_id=client,
                number=number,
                task=task,
                model=model,
                examples=data[client],
                training=settings,
                store=stores[client],
                arrays=sent,
                returns=returned.setdefault(client, {}),
            )
            ordinary = partial(train, task, model, data[client], settings)
            trained = preparation.train(options, work, ordinary)
            models[client] = (trained.num_examples, trained.parameters)
        after = preparation.combine(options, model, models)
        done = FederatedRound(number=number, before=model, after=after, models=models, arrays=returned)
        preparation.keep(options, done, server)
        model = after
    return model, stores, PreparedStore(options=options, store=server, next_store=MemoryStore())
