"""Every registered method as a Flower strategy with a name of its own, such as `PUFSpecial(targets, fedavg)`.

The classes are made from the registry, so a method that is installed has one as well; `strategies` names those of the
project. A class's name is the method's, in the letters of its title: `puf-special` with the title `PUF-Special` is
`PUFSpecial`.
"""

import re
from collections.abc import Iterable, Mapping
from inspect import Parameter, Signature, signature
from typing import Any, ClassVar

from strategies.fedavg import FedAvg
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.methods.method import Method
from unlearning.methods.registry import METHODS, checked
from unlearning.requests import Target


class MethodStrategy(UnlearningStrategy):
    """Forget `targets` by the class's method, with its `parameters`, then recover by `fedavg`.

    Raises:
        UnsupportedRequest: the method cannot serve one of the targets.
        InvalidRequest: a parameter is unknown or out of range.
    """

    of_class: ClassVar[Method]

    def __init__(self, targets: Iterable[Target], fedavg: FedAvg, **parameters: Any) -> None:
        wanted = tuple(targets)
        super().__init__(self.of_class, wanted, fedavg, parameters=checked(self.of_class, wanted, parameters))


def strategies_by_name() -> Mapping[str, type[MethodStrategy]]:
    """Return the strategy class of each registered method, by the name of the class."""
    return {class_name(method): _strategy_class(method) for method in METHODS.values()}


def class_name(method: Method) -> str:
    """Return the name of a method's strategy class."""
    info = method.info
    words = [re.search(word, info.title, re.IGNORECASE) for word in info.name.split("-")]
    spelled = [found[0] if found else word for found, word in zip(words, info.name.split("-"), strict=True)]
    return "".join(word[0].upper() + word[1:] for word in spelled)


def _strategy_class(method: Method) -> type[MethodStrategy]:
    fields = method.Parameters.model_fields
    shown = signature(MethodStrategy).parameters
    own = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=field.get_default(), annotation=field.annotation)
        for name, field in fields.items()
    ]
    described = "".join(
        f"    {name}: {field.description or field.annotation}; {field.get_default()!r}, if not given.\n"
        for name, field in fields.items()
    )
    return type(
        class_name(method),
        (MethodStrategy,),
        {
            "of_class": method,
            "__signature__": Signature([shown["targets"], shown["fedavg"], *own]),
            "__module__": __name__,
            "__doc__": f"Forget `targets` by {method.info.title}, then recover by `fedavg`.\n\n"
            f"    Source: {method.info.source}.\n\n{described}",
        },
    )
