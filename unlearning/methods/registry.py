"""The registry of methods and what is looked up in it by name. A new method is one file here and one line below.

Methods of other installed packages are in it too (`unlearning.methods.installed`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from unlearning.errors import ConfigurationError, InvalidRequest, UnknownMethod, UnsupportedRequest
from unlearning.methods.dp_covered import DpCovered
from unlearning.methods.exact_ridge import ExactRidge
from unlearning.methods.fedau import FedAu
from unlearning.methods.fedau_learning import FedAuLearning
from unlearning.methods.federaser import FedEraser
from unlearning.methods.fedmemprune import FedMemPrune
from unlearning.methods.fedosd import FedOsd
from unlearning.methods.fedquit import FedQuit
from unlearning.methods.gradient_ascent import GradientAscent
from unlearning.methods.hf_kcu import HfKcu
from unlearning.methods.hf_online import HfOnline
from unlearning.methods.installed import installed_methods
from unlearning.methods.method import Method, ParametersT
from unlearning.methods.mode import MoDe
from unlearning.methods.neggrad_plus import NegGradPlus
from unlearning.methods.newton_cg import NewtonCg
from unlearning.methods.noisy_fine_tuning import NoisyFineTuning
from unlearning.methods.pga import Pga
from unlearning.methods.preparation import Preparation
from unlearning.methods.puf import PufRegular, PufSpecial
from unlearning.methods.retrain import Natural, Retrain
from unlearning.methods.sisa import Sisa
from unlearning.methods.weight_negation import WeightNegation
from unlearning.requests import Target

_OWN: Mapping[str, Method] = {
    method.info.name: method
    for method in (
        PufSpecial(),
        PufRegular(),
        HfKcu(corrected=False),
        HfKcu(corrected=True),
        NewtonCg(),
        FedAu(),
        FedAuLearning(),
        WeightNegation(),
        GradientAscent(),
        NegGradPlus(),
        Pga(),
        Sisa(),
        HfOnline(),
        ExactRidge(),
        NoisyFineTuning(),
        DpCovered(),
        FedEraser(),
        MoDe(),
        FedOsd(),
        FedQuit(),
        FedMemPrune(),
        Retrain(),
        Natural(),
    )
}
_INSTALLED, UNUSABLE = installed_methods(_OWN)
METHODS: Mapping[str, Method] = {**_OWN, **_INSTALLED}


def method_named(name: str) -> Method:
    """Return the method called `name`.

    Raises:
        UnknownMethod: there is none; the message lists those there are.
    """
    try:
        return METHODS[name]
    except KeyError:
        why = f" It is installed here and cannot be used: {UNUSABLE[name]}." if name in UNUSABLE else ""
        raise UnknownMethod(
            f"Unknown method {name!r}.{why} The methods are: {', '.join(sorted(METHODS))}."
        ) from None


def validated_parameters(method: Method[ParametersT], values: Mapping[str, Any]) -> ParametersT:
    """Return `values` as the method's own parameters, with its defaults for what is left out.

    Raises:
        InvalidRequest: a name is unknown or a value is out of range; all of them are listed.
    """
    try:
        return method.Parameters.model_validate(dict(values))
    except ValidationError as exc:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in error['loc']) or 'parameters'}: {error['msg']}"
            for error in exc.errors()
        )
        allowed = ", ".join(sorted(method.Parameters.model_fields)) or "none"
        raise InvalidRequest(
            f"Bad parameters for {method.info.name}: {problems}. It takes: {allowed}.",
            code="unfit-parameter",
        ) from exc


def checked(method: Method[ParametersT], targets: Iterable[Target], values: Mapping[str, Any]) -> ParametersT:
    """Return `values` as the method's own parameters, once it is clear that it can forget the targets.

    Raises:
        UnsupportedRequest: the method cannot serve one of them.
        InvalidRequest: a parameter is unknown or out of range.
    """
    for target in targets:
        check_supports(method, target)
    return validated_parameters(method, values)


def check_supports(method: Method, target: Target) -> None:
    """Refuse a request that the method cannot serve.

    Raises:
        UnsupportedRequest: the method does not work at this granularity.
    """
    if target.granularity not in method.info.granularities:
        able = ", ".join(sorted(method.info.granularities))
        raise UnsupportedRequest(
            f"{method.info.title} cannot forget {target.describe()}: it works at the level(s) "
            f"{able}. Choose another method.",
            code="other-granularity",
        )


_FORM = "Write several as in: federaser every=2; pga."


def preparations(text: str) -> dict[str, Preparation]:
    """Return what the setting `prepare` switches on, by method: "federaser every=2; pga".

    What replaces local training comes first, so that the others see what was really trained.

    Raises:
        ConfigurationError: lists every entry that is wrong.
    """
    found: dict[str, Preparation] = {}
    wrong: list[str] = []
    for entry in (part.strip() for part in text.split(";")):
        if not entry:
            continue
        name, *words = entry.split()
        preparation = METHODS[name].info.preparation if name in METHODS else None
        if preparation is None:
            able = ", ".join(sorted(key for key, value in METHODS.items() if value.info.preparation))
            wrong.append(f"prepare: {name!r} is no method that is prepared for. Those are: {able}. {_FORM}")
            continue
        if name in found:
            wrong.append(f"prepare: {name} is given twice.")
        pairs = [word.partition("=") for word in words]
        try:
            switched_on = preparation.model_validate({key: value for key, _, value in pairs})
        except ValidationError as exc:
            fields = preparation.model_fields.items()
            known = ", ".join(field.alias or key for key, field in fields) or "none"
            reasons = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors())
            wrong.append(f"prepare: {entry!r}: {reasons}. Options of {name}: {known}. {_FORM}")
            continue
        found[name] = switched_on
    replacing = [name for name, prepared in found.items() if prepared.replaces_training]
    if len(replacing) > 1:
        wrong.append(f"prepare: {' and '.join(replacing)} each train in a way of their own; choose one.")
    alone = [name for name, prepared in found.items() if prepared.stands_alone]
    if alone and len(found) > 1 and len(replacing) < 2:
        others = ", ".join(sorted(set(found) - set(alone)))
        wrong.append(
            f"prepare: {alone[0]} trains a model of another shape than {others} could use; choose one."
        )
    if wrong:
        raise ConfigurationError(wrong)
    return {name: found[name] for name in sorted(found, key=lambda name: (name not in replacing, name))}
