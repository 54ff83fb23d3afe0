"""A Flower strategy in the place of FedAvg's mean: the model it gives, restarts, deletions, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAdam, FedAvgM, Strategy, strategy_utils

import strategies
from server import make_server_app
from strategies.aggregation import OwnAggregation
from strategies.messages import TRAIN, model_record, vector_of
from tests.cases import LONG, slow_but
from tests.deletion_service import free_port
from tests.own_pictures import own_training
from tests.raising import raises, refuses
from tests.sessions import ThreadedGrid
from tests.small_app import SETTINGS, TASK, SmallApp, examples, load_test, make_task
from unlearning.errors import AppError, ConfigurationError, UnsupportedRequest
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.method import Method
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Target
from unlearning.training import TrainingSettings, initial_parameters, train

WHOLE = {"batch_size": 64}
"""A batch of all examples: then neither seed nor round decides what a client sends."""
MAKERS: dict[str, Callable[[Any], Strategy]] = {
    "FedAvg": lambda _: flower.FedAvg(),
    "FedAdam": lambda _: FedAdam(eta=0.05),
    "FedYogi": lambda _: flower.FedYogi(eta=0.05),
    "FedAdagrad": lambda _: flower.FedAdagrad(eta=0.05),
    "FedAvgM": lambda _: FedAvgM(server_learning_rate=0.9, server_momentum=0.5),
    "FedProx": lambda _: flower.FedProx(proximal_mu=1.0),
    "FedMedian": lambda _: flower.FedMedian(),
    "FedTrimmedAvg": lambda _: flower.FedTrimmedAvg(beta=0.34),
    "Krum": lambda _: flower.Krum(),
    "MultiKrum": lambda _: flower.MultiKrum(num_nodes_to_select=2),
    "Bulyan": lambda _: flower.Bulyan(),
    "QFedAvg": lambda _: flower.QFedAvg(0.1, train_loss_key="loss"),
}


def started(
    app: SmallApp, strategy: Strategy, model: np.ndarray, *, rounds: int, without: int = 0
) -> np.ndarray:
    """What Flower's own `start()` makes of the same clients; `without`: a node that is not online."""
    config = {**SETTINGS, "batch-size": 64}
    grid = app.grid(config)
    grid.offline = {without}
    sorted_nodes = SimpleNamespace(
        sample=lambda nodes, count: sorted(nodes)[:count]
    )  # Krum's ties go to the first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategy_utils, "random", sorted_nodes)
        result = strategy.start(grid, model_record(model), num_rounds=rounds, evaluate_config=ConfigRecord())
    return vector_of(result.arrays)


@pytest.mark.parametrize("name", slow_but(("FedAdam", "FedAvgM", "FedTrimmedAvg"), MAKERS, LONG))
def test_a_strategy_gives_the_model_of_flower_s_own_loop(tmp_path, name):
    """The same clients, the same strategy, once in the live federation and once under `start()`."""
    app = SmallApp(tmp_path, strategy=MAKERS[name])
    state = app.run(rounds=2, **WHOLE)
    strategy = MAKERS[name](None)
    strategy.fraction_evaluate = 0.0
    expected = started(app, strategy, initial_parameters(make_task({}), seed=0), rounds=2)
    np.testing.assert_allclose(state.parameters, expected, rtol=2e-6, atol=2e-6)
    assert np.abs(expected - initial_parameters(make_task({}), seed=0)).max() > 1e-3


def test_the_proximal_term_pulls_clients_to_the_model(tmp_path):
    """With a weight of which rate times weight is 1, the second step of a client begins where the first did."""
    norms = {}
    for mu in (0.0, 10.0):
        app = SmallApp(tmp_path / str(mu), strategy=lambda _, mu=mu: flower.FedProx(proximal_mu=mu))
        app.run(rounds=1, local_epochs=2, learning_rate=0.1, **WHOLE)
        message, reply = next(both for both in app.answers if both[0].metadata.message_type == TRAIN)
        sent, back = (vector_of(one.content.array_records["arrays"]) for one in (message, reply))
        norms[mu] = float(np.linalg.norm(back - sent))
    assert norms[10.0] < 0.6 * norms[0.0]


@pytest.mark.parametrize("name", ["FedAdam", "FedAvgM"])
def test_a_restart_between_two_rounds_gives_the_same_bits(tmp_path, name):
    """The moments are in the checkpoint."""
    whole = SmallApp(tmp_path / "whole", strategy=MAKERS[name]).run(rounds=4)
    SmallApp(tmp_path / "cut", strategy=MAKERS[name]).run(rounds=2)
    cut = SmallApp(tmp_path / "cut", strategy=MAKERS[name]).run(rounds=4)
    assert cut.parameters.tobytes() == whole.parameters.tobytes()
    assert cut.aggregation.rounds == 4


def test_a_rate_that_is_changed_between_runs_counts(tmp_path):
    """Settings are not kept: what a checkpoint holds is what differs from a new strategy."""
    SmallApp(tmp_path, strategy=lambda _: FedAdam(eta=0.05)).run(rounds=1)
    state = SmallApp(tmp_path, strategy=lambda _: FedAdam(eta=0.5)).run(rounds=2)
    assert set(state.aggregation.state) == {"current_arrays", "m_t", "v_t"}


def test_recovery_begins_with_a_new_strategy(tmp_path):
    """What FedAdam keeps was made of the forgotten client's updates: recovery is `start()` from the unlearned model."""
    before = SmallApp(tmp_path / "before", strategy=MAKERS["FedAdam"]).run(rounds=2, **WHOLE)
    app = SmallApp(tmp_path / "all", strategy=MAKERS["FedAdam"])
    requests = {"requests": "at=2 client=1 method=natural", "recovery_max_rounds": 2}
    state = app.run(rounds=2, **requests, **WHOLE)
    strategy = FedAdam(eta=0.05, fraction_evaluate=0.0)
    expected = started(app, strategy, before.parameters, rounds=2, without=1002)
    np.testing.assert_allclose(state.parameters, expected, rtol=2e-6, atol=2e-6)
    assert state.aggregation.rounds == 2


def test_after_a_deletion_fedadam_ends_where_training_without_the_client_ends(tmp_path):
    """Convex: the optimum of those who stay does not depend on how one came there."""
    settings = {"learning_rate": 0.5, "weight_decay": 0.3, "local_epochs": 10, **WHOLE}

    def make(_: Any) -> Strategy:
        return FedAdam(eta=1.0, beta_1=0.0, beta_2=0.5, tau=1.0)

    before = SmallApp(tmp_path / "a", strategy=make).run(rounds=4, **settings)
    again = SmallApp(tmp_path / "a", strategy=make)
    after = again.run(rounds=8, requests="at=4 client=1 method=natural", **settings)
    without = SmallApp(tmp_path / "b", strategy=make)
    without.offline = {1002}
    retrained = without.run(rounds=8, **settings)
    distance = np.linalg.norm(after.parameters - retrained.parameters)
    assert distance < 0.1 * np.linalg.norm(before.parameters - retrained.parameters)


class Rejecting(FedAdam):
    """Ruins the model in its third round."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        return (model_record(np.full(18, np.nan)), metrics) if server_round == 3 else (arrays, metrics)


def test_a_round_that_is_rejected_leaves_the_strategy_as_it_was(tmp_path):
    """Its moments belong to the model that was committed."""
    state = SmallApp(tmp_path, strategy=lambda _: Rejecting(eta=0.05)).run(rounds=4)
    whole = SmallApp(tmp_path / "whole", strategy=MAKERS["FedAdam"]).run(rounds=2)
    assert state.round == 4
    assert state.aggregation.rounds == 2
    assert state.parameters.tobytes() == whole.parameters.tobytes()


def test_sessions_and_messages_give_the_same_model_with_a_strategy_and_mods(tmp_path):
    """What a strategy tells clients is in both: FedProx's weight."""
    found = {}
    for transport in ("messages", "session"):
        app = SmallApp(tmp_path / transport, mods=[half_of_it], strategy=MAKERS["FedProx"])
        app.kind_of_grid = ThreadedGrid
        found[transport] = app.run(
            rounds=2, local_epochs=2, transport=transport, session_address=f"127.0.0.1:{free_port()}"
        )
    assert found["messages"].parameters.tobytes() == found["session"].parameters.tobytes()


def half_of_it(message: Any, context: Any, call_next: Any) -> Any:
    """A mod that halves the change, and needs what the strategy tells."""
    assert message.content.config_records["config"]["proximal-mu"] == 1.0
    reply = call_next(message, context)
    sent, back = (vector_of(one.content.array_records["arrays"]) for one in (message, reply))
    reply.content.array_records["arrays"] = model_record((sent + (back - sent) / 2).astype(sent.dtype))
    return reply


def test_clipping_at_clients_has_the_norm_that_its_strategy_tells(tmp_path):
    """Flower's pair for central differential privacy: the wrapper tells the norm, the mod clips."""
    app = SmallApp(
        tmp_path,
        mods=[fixedclipping_mod],
        strategy=lambda _: flower.DifferentialPrivacyClientSideFixedClipping(FedAdam(), 0.0, 0.02, 3),
    )
    app.run(rounds=1)
    for message, reply in app.answers:
        if message.metadata.message_type == TRAIN:
            sent, back = (vector_of(one.content.array_records["arrays"]) for one in (message, reply))
            assert np.linalg.norm(back - sent) <= 0.02 * 1.001


class Watching(flower.FedAvg):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.nodes = sorted(grid.get_node_ids())
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        for one in replies:
            (metrics,) = one.content.metric_records.values()
            (arrays,) = one.content.array_records.values()
            self.seen.append([server_round, one.metadata.src_node_id, sorted(metrics), list(arrays)])
        return super().aggregate_train(server_round, replies)


def test_a_strategy_of_one_s_own_is_given_what_flower_promises(tmp_path):
    """One array record, one metric record with the weight, the sender; rounds from 1; the nodes of the round."""
    state = SmallApp(tmp_path, strategy=lambda _: Watching()).run(
        rounds=2, requests="at=1 client=1 method=natural"
    )
    kept = state.aggregation.state
    assert [kept["nodes"]["list"][key] for key in ("0", "1")] == [1001, 1003]
    assert kept["seen"]["list"]["0"]["list"]["0"] == 1
    assert kept["seen"]["list"]["0"]["list"]["2"]["list"] == {"0": "loss", "1": "num-examples"}


@pytest.mark.parametrize("strategy", [FedAdam(), FedAdam, "FedAdam", 3])
def test_what_makes_no_strategy_is_refused_when_the_app_is_made(strategy):
    """An instance would carry one federation's moments into the next."""
    with refuses("strategy"):
        make_server_app(make_task, load_test, table="own", strategy=strategy)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (lambda _: flower.FedAvg(fraction_train=0.5), "fraction_train=0.5"),
        (lambda _: strategies.FedAvg(TASK), "of `strategies`"),
        (lambda _: fixed_clipping(accountant=SimpleNamespace()), "accountant"),
    ],
)
def test_what_a_strategy_asks_of_the_federation_is_refused_at_the_start(tmp_path, strategy, said):
    """Before anything is written."""
    with refuses("strategy") as refused:
        SmallApp(tmp_path / "state", strategy=strategy).run(rounds=1)
    assert said in str(refused.value)
    assert not (tmp_path / "state").exists()


def fixed_clipping(**changes: Any) -> Strategy:
    """A wrapper with attributes that a careless user might set."""
    made = flower.DifferentialPrivacyServerSideFixedClipping(FedAdam(), 1.0, 1.0, 3)
    vars(made).update(changes)
    return made


def test_a_function_that_gives_no_strategy_is_named(tmp_path):
    """One sentence with the function."""
    with pytest.raises(AppError, match=r"must return a flwr.*Strategy, got int 3"):
        SmallApp(tmp_path, strategy=lambda _: 3).run(rounds=1)


def test_the_proximal_term_needs_the_built_in_training():
    """At the server's start, by the function's name; and at a client under Flower's own loop."""
    task = replace(TASK, train=own_training)
    with refuses("strategy"):
        OwnAggregation(MAKERS["FedProx"], {}, task, [])
    settings = TrainingSettings(proximal_mu=1.0)
    with raises(AppError, "no-proximal-term"):
        train(task, initial_parameters(task, seed=0), examples(0), settings)


class Remembering(flower.FedAvg):
    """Keeps something that changes."""

    def __init__(self, kept: Any, also: Any = None) -> None:
        super().__init__()
        self.kept, self.also = kept, also

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.kept.add(server_round)
        return super().aggregate_train(server_round, replies)


def test_what_no_checkpoint_can_hold_ends_the_run_in_its_first_round(tmp_path):
    """It would be lost silently; an object that never changes may stay."""
    with pytest.raises(AppError, match="Remembering keeps kept, a set"):
        SmallApp(tmp_path, strategy=lambda _: Remembering(set(), object())).run(rounds=1)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (lambda _: flower.QFedAvg(0.1), "Missing or invalid training loss"),
        (lambda _: flower.Bulyan(num_malicious_nodes=1), "made no model of 3 answer"),
        (lambda _: Shortening(), "made {'vector': .17,.} and no model"),
        (lambda _: Waiting(), "it waits for more clients than the 3 of the round"),
        (lambda _: Compressing(), "sends other arrays than the model"),
    ],
)
@pytest.mark.slow
def test_a_strategy_that_makes_no_model_in_the_first_round_ends_the_run(tmp_path, strategy, said):
    """Later it may be the fault of an answer: the round is not committed, and the federation goes on."""
    with pytest.raises(AppError, match=said):
        SmallApp(tmp_path, strategy=strategy).run(rounds=1)


class Shortening(flower.FedAvg):
    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        return model_record(vector_of(arrays)[1:]), metrics


class Waiting(flower.FedAvg):
    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        while len(grid.get_node_ids()) < 100:
            pass
        return []


class Compressing(flower.FedAvg):
    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        return super().configure_train(server_round, model_record(vector_of(arrays) * 2), config, grid)


class Failing(flower.FedAvg):
    """Cannot use one client's answer."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if server_round > 1 and any(one.metadata.src_node_id == 1002 for one in replies):
            raise ValueError("not this one")
        return super().aggregate_train(server_round, replies)


def test_one_answer_that_a_strategy_cannot_use_is_left_out_by_name(tmp_path):
    """As one that spoils FedAvg's mean."""
    state = SmallApp(tmp_path, strategy=lambda _: Failing()).run(rounds=3)
    assert state.aggregation.rounds == 3
    assert set(state.suspensions) == {"1"}


ASSUMING = {"federaser", "sisa", "hf-online", "exact-ridge", "fedau-learning", "pga"}


def test_methods_that_assume_fedavg_are_refused_with_another_strategy():
    """By what they state of themselves; FedMedian is another, Flower's FedAvg none."""
    profile = FederationProfile.of(TASK, aggregation="FedMedian")
    refused = {name for name, method in METHODS.items() if code_of(method, profile) == "own-aggregation"}
    assert refused == ASSUMING
    made = {name: OwnAggregation(make, {}, TASK, []).is_fedavg for name, make in MAKERS.items()}
    assert {name for name, is_fedavg in made.items() if is_fedavg} == {"FedAvg"}


def test_methods_that_would_go_past_the_noise_are_refused():
    """Of differential privacy, only methods remain that make the model of no client's answer."""
    profile = FederationProfile.of(TASK, aggregation="DP", adds_noise=True)
    assert OwnAggregation(lambda _: fixed_clipping(), {}, TASK, []).adds_noise
    left = {name for name, method in METHODS.items() if not code_of(method, profile)}
    assert left == {"not", "natural"}
    with pytest.raises(UnsupportedRequest) as caught:  # what it advises is not refused then
        check_eligible(METHODS["hf-online"], Target(Granularity.CLIENT, "1"), profile, {})
    assert "Choose not or natural." in str(caught.value)


def code_of(method: Method, profile: FederationProfile) -> str:
    """Why the method cannot forget a client in such a federation; empty where it can."""
    try:
        check_eligible(method, Target(Granularity.CLIENT, "1"), profile, {})
    except UnsupportedRequest as exc:
        return exc.code
    return ""


def test_what_is_prepared_for_does_not_go_with_another_strategy(tmp_path):
    """At the start, with the reason."""
    with refuses("prepare: federaser"):
        SmallApp(tmp_path, strategy=MAKERS["FedMedian"]).run(rounds=1, prepare="federaser")
    SmallApp(tmp_path, strategy=MAKERS["FedAvg"]).run(rounds=1, prepare="federaser")


@pytest.mark.parametrize(
    ("requests", "strategy"),
    [
        ("at=1 client=7", "FedMedian"),
        ("at=1 client=1 method=pga", "FedMedian"),
        ("at=1 class=5", "FedAvg"),
    ],
)
def test_a_scripted_request_that_the_federation_cannot_serve_is_refused_at_the_start(
    tmp_path, requests, strategy
):
    """A client that there is not, a method that its strategy excludes, a class that its task lacks."""
    app = SmallApp(tmp_path, strategy=MAKERS[strategy])
    with pytest.raises(ConfigurationError, match="requests, entry 1"):
        app.run(rounds=2, requests=requests)
    assert not [one for one in app.answers if one[0].metadata.message_type == TRAIN]
