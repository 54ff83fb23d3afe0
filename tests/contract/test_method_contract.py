"""Every method of the registry keeps to the contract that `unlearning.testing` checks; what does not is found."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from pydantic import Field

from tests.cases import slow_but
from unlearning.errors import ContractBroken, UnknownMethod, UnsupportedRequest
from unlearning.methods.costs import Cost
from unlearning.methods.federaser import FedEraser
from unlearning.methods.gradient_ascent import GradientAscent
from unlearning.methods.hf_kcu import HfKcu
from unlearning.methods.method import ClientSite, Method, MethodParameters, Problem, Reply, UnlearningState
from unlearning.methods.puf import PufSpecial
from unlearning.methods.registry import METHODS, check_supports, method_named
from unlearning.methods.retrain import Natural, Retrain
from unlearning.requests import Granularity, Target
from unlearning.testing import Claim, check_method
from unlearning.testing.deletion_rules import DELETION_RULES
from unlearning.testing.method_rules import RULES

QUICK = ("exact-ridge", "hf-kcu", "newton-cg", "not", "puf-special", "retrain", "sisa")
CLAIMS = {
    "exact-ridge": Claim(distance=0, rounds=2),
    "sisa": Claim(distance=0, rounds=8),
}
"""How near to retraining, of those that claim something that has no other test of its own."""


@pytest.mark.parametrize("name", slow_but(QUICK, sorted(METHODS)))
def test_a_method_keeps_to_the_contract(name: str):
    """Every rule, at each granularity that it states."""
    check_method(METHODS[name], CLAIMS.get(name))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_each_parameter_says_what_it_is(name: str):
    """In plans, on the card and in the console."""
    described = METHODS[name].Parameters.model_json_schema().get("properties", {})
    assert [key for key, value in described.items() if not value.get("description")] == []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_an_unsupported_granularity_is_refused(name: str):
    """What the method cannot serve is refused by what it states about itself, and nothing else is."""
    method = METHODS[name]
    targets = (
        Target(Granularity.CLIENT, "a"),
        Target(Granularity.SAMPLE, "a", frozenset({"1", "2"})),
        Target(Granularity.CLASS, class_label=2),
    )
    for target in targets:
        if target.granularity in method.info.granularities:
            check_supports(method, target)
        else:
            with pytest.raises(UnsupportedRequest):
                check_supports(method, target)


def test_the_registry_knows_a_method_by_its_own_name():
    """Key and stated name agree, and titles are unique."""
    assert {name: METHODS[name].info.name for name in METHODS} == {name: name for name in METHODS}
    assert len({method.info.title for method in METHODS.values()}) == len(METHODS)
    assert all(method_named(name) is METHODS[name] for name in METHODS)


def test_an_unknown_method_is_refused_with_the_list():
    """The message lists the methods there are."""
    with pytest.raises(UnknownMethod) as caught:
        method_named("amnesia")
    assert ", ".join(sorted(METHODS)) in str(caught.value)


class Loose(MethodParameters):
    """Without an upper bound."""

    rate: float = Field(default=1.0, gt=0)


class Remembering(HfKcu):
    """Keeps something on the object between two exchanges."""

    def __init__(self) -> None:
        super().__init__(corrected=True)
        self.total = 0.0

    def aggregate(self, problem, state, replies):
        self.total += 1.0
        following = super().aggregate(problem, state, replies)
        return replace(following, parameters=following.parameters + np.float32(self.total))


def stating(base: type[Method], **attributes: Any) -> Method:
    """A method that states something else about itself."""
    return type(base.__name__, (base,), attributes)()


def after(base: type[Method], change: Callable[[UnlearningState], UnlearningState]) -> Method:
    """A method whose aggregate() does something more to the state."""

    def aggregate(self, problem, state, replies):
        return change(base.aggregate(self, problem, state, replies))

    return stating(base, aggregate=aggregate)


def answering(base: type[Method], change: Callable[[Reply, ClientSite], Reply]) -> Method:
    """A method whose client_step() does something more to the answer."""

    def client_step(self, instruction, site):
        return change(base.client_step(self, instruction, site), site)

    return stating(base, client_step=client_step)


class Asking(PufSpecial):
    """Asks a client that is none of the problem's."""

    def configure(self, problem, state):
        asked = dict(super().configure(problem, state))
        return {**asked, "z": next(iter(asked.values()))}


class Telling(Retrain):
    """Tells the retained clients what the target must forget."""

    def configure(self, problem, state):
        forget = next(iter(problem.targets.values()))
        return {
            client: replace(one, forget=forget) for client, one in super().configure(problem, state).items()
        }


class Changing(PufSpecial):
    """Scales the model that it is given in place."""

    def begin(self, problem, parameters):
        parameters *= 0.5
        return super().begin(problem, parameters)


class Emptying(PufSpecial):
    """Throws the replies away once they are read."""

    def aggregate(self, problem, state, replies):
        following = super().aggregate(problem, state, replies)
        replies.clear()
        return following


class TwiceAsked(PufSpecial):
    """Takes two exchanges, and answers with its memo's count."""

    def client_step(self, instruction, site):
        site.memo["times"] = site.memo.get("times", 0) + 1
        reply = super().client_step(instruction, site)
        return replace(reply, vector=reply.vector * site.memo["times"])

    def aggregate(self, problem, state, replies):
        following = super().aggregate(problem, state, replies)
        return replace(following, finished=following.exchanges == 2)


class AnyLength(PufSpecial):
    """Says that it checks lengths itself, and takes what broadcasts."""

    info = replace(PufSpecial.info, replies_have_any_length=True)

    def aggregate(self, problem, state, replies):
        whole = {name: replace(one, vector=np.resize(one.vector, 9)) for name, one in replies.items()}
        return super().aggregate(problem, state, whole)


def per_example(reply: Reply, site: ClientSite) -> Reply:
    """Divide by the examples of each client, of which a class may leave none."""
    count = len(site.forget)
    return replace(reply, vector=reply.vector / np.float32(count), num_examples=max(1, count))


def with_noise(found: UnlearningState) -> UnlearningState:
    """Draw from the system's entropy."""
    noise = np.random.default_rng().normal(size=found.parameters.size).astype(np.float32)
    return replace(found, parameters=found.parameters + noise)


def unanswered(self: PufSpecial, problem: Problem, state: UnlearningState, replies: Any) -> UnlearningState:
    """Take no answer for an answer."""
    if not replies:
        return state.advance(state.parameters, finished=True)
    return PufSpecial.aggregate(self, problem, state, replies)


BROKEN: Mapping[str, tuple[Method, str]] = {
    "states what it is": (
        stating(Natural, info=replace(Natural.info, name="Not a name")),
        "name='Not a name'",
    ),
    "has parameters with defaults, and bounds that hold": (
        stating(Natural, Parameters=Loose),
        "rate has no upper bound",
    ),
    "can be priced and repaired": (
        stating(PufSpecial, cost=lambda *_: Cost(-1, 0.0)),
        "communication_bytes=-1",
    ),
    "comes to an end with a model": (
        after(PufSpecial, lambda found: replace(found, finished=False)),
        "it had not finished after 100 exchanges",
    ),
    "moves the model if it says so, and only then": (
        stating(Natural, info=replace(Natural.info, moves_model=True)),
        "moves_model is True, and the model is the same",
    ),
    "gives the same bits for the same seed": (after(PufSpecial, with_noise), "two runs of the same deletion"),
    "survives a restart between any two exchanges": (Remembering(), "ended in another state"),
    "counts its exchanges": (
        after(PufSpecial, lambda found: replace(found, exchanges=2)),
        r"the states count \[0, 2\]",
    ),
    "changes nothing that it is given": (Changing(), r"begin\(\) changed its parameters"),
    "asks whom the problem names, and tells each only what is its own to forget": (
        Asking(),
        "it asks z, who",
    ),
    "needs no memo": (TwiceAsked(), "with a memo that is kept"),
    "keeps nothing of the forgotten examples in its state, and sends nothing of them": (
        answering(
            PufSpecial, lambda reply, site: replace(reply, arrays={"rows": site.forget.inputs.numpy()})
        ),
        "the answer of a holds an example's inputs in rows",
    ),
    "goes on where a client has no example of the class": (
        answering(GradientAscent, per_example),
        "it raised|not finite",
    ),
    "forgets what is named, and not something else": (
        answering(PufSpecial, lambda reply, _: replace(reply, vector=np.ones_like(reply.vector))),
        "the same model",
    ),
    "takes no buffer for a direction": (
        stating(PufSpecial, info=replace(PufSpecial.info, replies_are_updates=False)),
        "of its running variances are negative",
    ),
    "fails in a sentence where no client answers": (
        stating(PufSpecial, aggregate=unanswered),
        "without a single answer",
    ),
    "refuses vectors of another length": (AnyLength(), "had lost its end"),
    "says so where it was not prepared for": (
        stating(FedEraser, begin=Natural.begin),
        "though nothing was kept",
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_method_that_breaks_a_rule_is_told_which_and_what_to_do(rule: str):
    """The rule, what was seen, and the remedy stand in one line."""
    method, seen = BROKEN[rule]
    with pytest.raises(ContractBroken, match=rf"(?m)^  - {re.escape(rule)}: .*{seen}.*\. ") as caught:
        check_method(method)
    (remedy,) = [one.remedy for one in (*RULES, *DELETION_RULES) if one.name == rule]
    assert remedy in str(caught.value)


def test_each_rule_has_a_method_that_breaks_it():
    """So none of them says nothing."""
    assert [one.name for one in (*RULES, *DELETION_RULES)] == list(BROKEN)


@pytest.mark.parametrize(
    ("method", "seen"),
    [
        (Telling(), "it tells b to forget"),
        (
            after(PufSpecial, lambda found: replace(found, values={"who": "a/patient-1"})),
            "the state names a/patient-1",
        ),
        (
            after(PufSpecial, lambda found: replace(found, findings={"who": ["a/patient-1"]})),
            "the state names a/patient-1",
        ),
        (
            after(PufSpecial, lambda found: replace(found, parameters=found.parameters.astype(float))),
            r"the model is float64 \(9,\), and was float32 \(9,\)",
        ),
        (
            after(PufSpecial, lambda found: replace(found, values={"nan": float("nan")})),
            "it raised ValueError",
        ),
        (Emptying(), r"aggregate\(\) changed its replies"),
    ],
)
def test_other_ways_to_break_a_rule_are_seen(method: Method, seen: str):
    """In plain words."""
    with pytest.raises(ContractBroken, match=seen):
        check_method(method)


def test_a_claim_is_measured():
    """Natural leaves all of the distance to retraining; Retrain none."""
    check_method(Natural(), Claim(distance=1.0, rounds=2))
    with pytest.raises(ContractBroken):
        check_method(Natural(), Claim(distance=0.5, rounds=2))


def test_what_is_no_method_is_said():
    """Whatever it is."""
    with pytest.raises(ContractBroken):
        check_method(partial(print))  # type: ignore[arg-type]
