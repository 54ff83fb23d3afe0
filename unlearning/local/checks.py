"""What the library refuses before it trains: by the rules of a federation's settings, sites and admission."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, PositiveInt, TypeAdapter, ValidationError, WrapValidator
from pydantic.dataclasses import dataclass

from unlearning.errors import (
    AlreadyForgotten,
    AppError,
    ConfigurationError,
    DataError,
    InvalidRequest,
    UnknownClient,
    UnsupportedRequest,
    describe_wrong_value,
)
from unlearning.methods.eligibility import FederationProfile, check_eligible, may_go_together
from unlearning.methods.method import Method
from unlearning.methods.preparation import Preparation, no_truth_for_numbers, truth_is_no_number
from unlearning.methods.registry import check_supports
from unlearning.parameters import Vector, check_finite
from unlearning.requests import ID_RULE, Exclusions, Target, is_id
from unlearning.task_contract import check_task, couples_examples
from unlearning.tasks.checks import check_examples
from unlearning.tasks.task import Examples, Task, forgotten_mask, unknown_ids
from unlearning.training import TrainingSettings, model_with, untrained_parameters

_ROUNDS: TypeAdapter[int] = TypeAdapter(Annotated[PositiveInt, WrapValidator(truth_is_no_number)])


@dataclass(
    frozen=True,
    kw_only=True,
    config=ConfigDict(allow_inf_nan=False, loc_by_alias=False, populate_by_name=True),
)
class _Allowed(TrainingSettings):
    """Training settings whose values are within their bounds."""

    _numbers = no_truth_for_numbers


def check_is_task(task: Task) -> None:
    """Refuse what is no task, or has local layers.

    Raises:
        AppError: it is or has.
    """
    if not isinstance(task, Task):
        raise AppError(f"A task is an unlearning.tasks.Task, got {type(task).__name__}.", code="no-task")
    if task.local_layers:
        said = (
            "the library has no sites that could keep them. Run an app: strategies.in_process_grid.run_apps."
        )
        raise AppError(f"{task.name} has local_layers, and {said}", code="local-layers")


def check_rounds(rounds: int) -> int:
    """Return a number of rounds.

    Raises:
        ConfigurationError: it is no whole number of 1 or more.
    """
    try:
        return _ROUNDS.validate_python(rounds)
    except ValidationError as exc:
        raise ConfigurationError([describe_wrong_value(exc.errors()[0], "rounds")]) from exc


def checked_training(training: TrainingSettings) -> TrainingSettings:
    """Return the settings, whose values have their types.

    Raises:
        ConfigurationError: lists every one that is out of the range which the same setting of a run has.
    """
    if not isinstance(training, TrainingSettings):
        raise ConfigurationError([f"training: give TrainingSettings, got {type(training).__name__}."])
    values = {item.name: getattr(training, item.name) for item in fields(training)}
    try:
        allowed = _Allowed(**values)
    except ValidationError as exc:
        raise ConfigurationError([describe_wrong_value(error) for error in exc.errors()]) from exc
    return replace(training, **{name: getattr(allowed, name) for name in values})


def check_model(parameters: Vector) -> None:
    """Refuse what is no vector of finite numbers.

    Raises:
        DataError: it is no array of floating-point numbers. UpdateRefused: a value is not finite.
    """
    if not isinstance(parameters, np.ndarray) or parameters.dtype.kind != "f":
        raise DataError(
            f"A model is one NumPy vector, as unlearning.parameters.flatten(module) gives it, got "
            f"{type(parameters).__name__}.",
            code="no-vector",
        )
    check_finite(parameters)


def check_mapping(sites: Mapping[str, Examples]) -> None:
    """Refuse what is no mapping of Examples.

    Raises:
        DataError: it is none.
    """
    if not isinstance(sites, Mapping) or not all(isinstance(one, Examples) for one in sites.values()):
        raise DataError("Sites are a mapping from each client's id to its Examples.", code="no-sites")


def check_sites(task: Task, together: Task, sites: Mapping[str, Examples], parameters: Vector) -> None:
    """Refuse sites that cannot be named, and examples that `task` does not fit.

    together: what is learnt in the place of `task`, whose model (d,) `parameters` are.

    Raises:
        DataError, AppError: names the client, and what is wrong. UpdateRefused: the model is not of its length.
    """
    check_is_task(task)
    model = model_with(together, parameters)
    if together is not task:
        model = model_with(task, untrained_parameters(task, seed=0))
    for client, examples in sites.items():
        if not is_id(client):
            raise DataError(f"The client id {client!r:.42} is malformed: {ID_RULE}.", code="malformed-id")
        check_examples(examples, f"Client {client}")
        try:
            check_task(task, examples, model.eval())
        except AppError as exc:
            raise AppError(f"Client {client}: {exc}", code=exc.code) from exc


def check_targets(
    method: Method,
    targets: tuple[Target, ...],
    task: Task,
    prepared: Mapping[str, Preparation],
    sites: Mapping[str, Examples],
    known: Iterable[str],
    forgotten: Exclusions,
) -> None:
    """Refuse what a federation would refuse at admission, or answer without a deletion.

    sites: as they are given, perhaps with what is forgotten. known: clients that took part and may be away now.

    Raises:
        InvalidRequest: there is no target, or no such class. UnsupportedRequest: the method cannot serve one.
        AlreadyForgotten: nothing is left of a target, or some of its samples are forgotten.
        UnknownClient: there is no such client. DataError: it has no such sample; no site has an example of the class.
    """
    some = next((examples for examples in sites.values() if len(examples)), None)
    profile = FederationProfile.of(
        task,
        prepare="; ".join(prepared),
        prepared_since=dict.fromkeys(prepared, 0),
        couples_examples=some is not None and couples_examples(task, some),
    )
    for target in targets:
        check_supports(method, target)
        check_eligible(method, target, profile, prepared)
        if not may_go_together(method.info, targets[0], target) and target != targets[0]:
            raise UnsupportedRequest(
                f"{method.info.title} forgets one client at a time: give {targets[0].describe()} and "
                f"{target.describe()} to one unlearn() each.",
                code="one-at-a-time",
            )
        _check_forgotten(target, sites, forgotten)
        _check_there(target, sites, known)


def checked_targets(targets: Iterable[Target]) -> tuple[Target, ...]:
    """Return the targets.

    Raises:
        InvalidRequest: there is none, or something else.
    """
    found = tuple(targets) if isinstance(targets, Iterable) else ()
    if not found or not all(isinstance(target, Target) for target in found):
        raise InvalidRequest(
            f"Targets are a list of one Target or more, got {targets!r:.60}.", code="no-targets"
        )
    return found


def _check_forgotten(target: Target, sites: Mapping[str, Examples], forgotten: Exclusions) -> None:
    if forgotten.cover(target):
        raise AlreadyForgotten(f"Nothing is left of {target.describe()}: it was forgotten before.")
    client = target.client_id or ""
    gone = forgotten.of(client)
    examples = sites.get(client)
    of_classes = examples.ids[forgotten_mask(examples, gone)].tolist() if examples else []
    if again := target.sample_ids & {*of_classes, *gone.sample_ids}:
        raise AlreadyForgotten(
            f"{len(again):,} of the {target.num_samples:,} samples of client {client} were forgotten before, such as "
            f"{min(again)}; leave these out.",
            code="samples",
        )


def _check_there(target: Target, sites: Mapping[str, Examples], known: Iterable[str]) -> None:
    client = target.client_id
    if client is None:
        if not any(forgotten_mask(examples, target.forget).any() for examples in sites.values()):
            raise DataError(
                f"No site has an example of class {target.class_label}.", code="nothing-to-forget"
            )
        return
    if client not in sites and client not in known:
        raise UnknownClient(f"There is no client {client!r}; there are {', '.join(sorted(sites)) or 'none'}.")
    missing = unknown_ids(sites[client], target.sample_ids) if client in sites else []
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(target.sample_ids):,} sample ids are not among the examples of client "
            f"{client}: {', '.join(missing[:5])}.",
            code="unknown-samples",
        )
