"""Every method is a Flower strategy by name, under Flower's own `start()`."""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import strategies
from strategies import FedAvg, PUFSpecial
from strategies.by_name import MethodStrategy, class_name, strategies_by_name
from strategies.messages import vector_of
from tests.cases import LONG, slow_but
from unlearning.errors import InvalidRequest, MethodFailed, UnsupportedRequest
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Target
from unlearning.tasks import load_site

TINY = {"num_clients": 3, "max_examples": 90, "attack_samples": 5, "learning_rate": 0.5, "dtype": "float64"}
CLIENT = [Target(Granularity.CLIENT, "1")]
PREPARED = {"hf-online": "hf-online clients=1", "sisa": "sisa shards=1"}


def test_editors_and_type_checkers_see_the_strategy_of_every_method():
    """`from strategies import NAME` needs no import to be run; each is a class of its own (`make docs` writes them)."""
    tree = ast.parse(inspect.getsource(strategies))
    [block] = [
        one for one in tree.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"
    ]
    seen = {one.targets[0].id for one in block.body if isinstance(one, ast.Assign)}
    assert seen == {class_name(method) for method in METHODS.values()}
    assert all(issubclass(getattr(strategies, name), MethodStrategy) for name in seen)


@pytest.mark.parametrize("name", slow_but(("exact-ridge", "newton-cg", "puf-special", "sisa"), METHODS, LONG))
def test_each_unlearns_and_recovers_under_flowers_own_start(name: str, federation):
    """Two rounds are learnt, then the method's exchanges, then rounds without the target."""
    method = METHODS[name]
    prepare = PREPARED.get(method.info.name, method.info.name) if method.info.preparation else ""
    one = federation(prepare=prepare, **TINY)
    fedavg = FedAvg(one.task, one.settings)
    trained = fedavg.start(one.grid, fedavg.initial_arrays(), num_rounds=2)
    forget = strategies_by_name()[class_name(method)](CLIENT, fedavg)
    forgotten, num_sent = trained, len(one.grid.sent)
    while not forget.is_finished:
        forgotten = forget.start(one.grid, forgotten.arrays, num_rounds=3)
    forgotten = forget.start(one.grid, forgotten.arrays, num_rounds=1)
    assert (vector_of(forgotten.arrays) != vector_of(trained.arrays)).any()
    later = [
        message.metadata.dst_node_id
        for message in one.grid.sent[num_sent:]
        if message.metadata.message_type == "train"
    ]
    assert {*later} == {one.node("0"), one.node("2")}


def test_a_client_with_another_frozen_part_does_not_unlearn(federation, monkeypatch):
    """As it does not train: what it would answer belongs to another model than the certificate names."""
    one = federation(**TINY)
    fedavg = FedAvg(one.task, one.settings)
    trained = fedavg.start(one.grid, fedavg.initial_arrays(), num_rounds=1)
    monkeypatch.setattr("strategies.fedavg.frozen_part", lambda _task: "5b" * 32)
    forget = PUFSpecial(CLIENT, FedAvg(one.task, one.settings))
    with pytest.raises(MethodFailed):
        forget.start(one.grid, trained.arrays, num_rounds=1)
    assert "The frozen part of the model of digits/logistic has" in forget.outcome.refused["1"]


@pytest.mark.parametrize("part", ["client", "sample"])
def test_what_was_forgotten_does_not_come_back_from_what_a_method_keeps(part, federation):
    """Exact ridge sends the head of the sums it keeps with each round: after a deletion, without what is forgotten."""
    one = federation(prepare="exact-ridge", **TINY)
    ids = frozenset(load_site(one.settings.task(), 1).train.ids[:5].tolist())
    target = Target(Granularity.SAMPLE, "1", ids) if part == "sample" else CLIENT[0]
    fedavg = FedAvg(one.task, one.settings)
    trained = fedavg.start(one.grid, fedavg.initial_arrays(), num_rounds=3)
    forget = strategies.ExactRidge([target], fedavg)
    forgotten = forget.start(one.grid, trained.arrays, num_rounds=1)
    assert forget.is_finished
    recovered = forget.start(one.grid, forgotten.arrays, num_rounds=1)
    assert (vector_of(forgotten.arrays) != vector_of(trained.arrays)).any()
    np.testing.assert_array_equal(vector_of(recovered.arrays), vector_of(forgotten.arrays))


def test_parameters_are_keywords_with_the_methods_own_defaults():
    """As a reader of its signature sees them."""
    own = METHODS["puf-special"].Parameters()
    shown = inspect.signature(PUFSpecial).parameters
    assert {name: shown[name].default for name in type(own).model_fields} == own.model_dump()
    assert "unlearning_rate" in (PUFSpecial.__doc__ or "")


def test_a_wrong_parameter_and_a_wrong_target_are_refused(federation):
    """With the sentences that the deletion service has for them."""
    fedavg = FedAvg(federation(**TINY).task)
    with pytest.raises(InvalidRequest):
        PUFSpecial(CLIENT, fedavg, rate=1)
    with pytest.raises(UnsupportedRequest):
        strategies.PGA([Target(Granularity.SAMPLE, "1", frozenset({"0"}))], fedavg)


def test_settings_are_keywords_of_fedavg(federation):
    """Checked as in a run's configuration."""
    fedavg = FedAvg(federation(**TINY).task, learning_rate=0.25, local_epochs=3)
    assert (fedavg.settings.learning_rate, fedavg.settings.epochs) == (0.25, 3)


def test_an_unknown_name_is_told_with_those_there_are():
    """So that a typing mistake is seen."""
    with pytest.raises(AttributeError, match=r"no strategy 'PUFSpezial'; there are FedAvg, .*PUFSpecial"):
        _ = strategies.PUFSpezial


if __name__ == "__main__":
    place = Path(strategies.__file__)
    names = "".join(
        f"    {name} = MethodStrategy\n" for name in sorted(map(class_name, METHODS.values()), key=str.lower)
    )
    place.write_text(re.sub(r"(    \w+ = MethodStrategy\n)+", names, place.read_text()))
