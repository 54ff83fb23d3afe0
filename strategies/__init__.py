"""Flower strategies that can forget, and what they share with the clients.

Import from here: `FedAvg` (federated averaging among eligible clients), `UnlearningStrategy` (any method
of `unlearning.methods`), and a factory for each method: `puf_special(...)`, `puf_regular(...)`. Each runs
under Flower's stock `start()` and under this project's live loop.

May import `unlearning` and Flower; not `server`, `client` or a database.
"""

from collections.abc import Iterable
from typing import Any

from strategies.fedavg import FedAvg
from strategies.run_config import RunSettings
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.methods.registry import check_supports, method_named, validated_parameters
from unlearning.requests import Target

__all__ = [
    "FedAvg",
    "RunSettings",
    "UnlearningStrategy",
    "puf_regular",
    "puf_special",
    "unlearning_strategy",
]


def unlearning_strategy(
    method: str, targets: Iterable[Target], fedavg: FedAvg, **parameters: Any
) -> UnlearningStrategy:
    """A strategy that forgets `targets` by the method of that name and then recovers by `fedavg`.

    Raises:
        UnknownMethod: there is no such method.
        UnsupportedRequest: the method cannot serve one of the targets.
        InvalidRequest: a parameter is unknown or out of range.
    """
    chosen = method_named(method)
    wanted = tuple(targets)
    for target in wanted:
        check_supports(chosen, target)
    return UnlearningStrategy(chosen, wanted, fedavg, parameters=validated_parameters(chosen, parameters))


def puf_special(targets: Iterable[Target], fedavg: FedAvg, **parameters: Any) -> UnlearningStrategy:
    """PUF-Special: only the targets train in the unlearning round."""
    return unlearning_strategy("puf-special", targets, fedavg, **parameters)


def puf_regular(targets: Iterable[Target], fedavg: FedAvg, **parameters: Any) -> UnlearningStrategy:
    """PUF-Regular: the unlearning round is an ordinary round in which the targets' updates are negated."""
    return unlearning_strategy("puf-regular", targets, fedavg, **parameters)
