"""Buffers in the flat vector: where they are, and that no step, norm or check takes them for a direction."""

from collections.abc import Mapping
from dataclasses import replace
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from strategies.fedavg import FedAvg
from strategies.pending_exchange import PendingExchange
from tests.normalised import TASK, TRAINING, sites
from tests.rounds import OneRound
from unlearning.buffers import buffer_positions, check_variances, without_buffers
from unlearning.errors import MethodFailed, ModelRefused, UpdateRefused
from unlearning.local import Learnt, begin, exchange, learn, problem_of, unlearn
from unlearning.methods.method import Problem, Reply, UnlearningState
from unlearning.methods.mode import DEGRADATION
from unlearning.methods.puf import PufSpecial
from unlearning.methods.registry import METHODS
from unlearning.methods.unlearned_model import check_unlearned
from unlearning.methods.updates import RETAINED_UPDATE, split_buffers
from unlearning.parameters import Vector, add_weighted, layout, weighted_mean
from unlearning.requests import Granularity, Target
from unlearning.runtime.spool import SpoolFile
from unlearning.tasks.ensemble import shard_task
from unlearning.training import initial_parameters, local_seed, train
from unlearning.untrusted import array_of

EXACT = replace(TASK, dtype=torch.float64)
SITES = sites(3.0, 4.0)
LEAVES = Target(Granularity.CLIENT, "u")
BUFFERS = buffer_positions(TASK)
START = initial_parameters(TASK, 0)
WEIGHTS: NDArray[np.bool_] = ~np.isin(np.arange(START.size), BUFFERS)


@pytest.fixture(scope="module")
def learnt() -> Learnt:
    """The model of two rounds, in float64, with weight decay."""
    training = replace(TRAINING, weight_decay=0.01)
    return learn(EXACT, SITES, begin(EXACT, training, "pga; federaser"), rounds=2)


def model_of(learnt: Learnt, client: str) -> Vector:
    """What ordinary training at a client makes of the model in its next round, as the oracle has it."""
    training = replace(learnt.training, seed=local_seed(0, client, learnt.next_round))
    return train(EXACT, learnt.parameters, SITES[client], training).parameters


def negative(vector: Vector) -> Vector:
    """The same with a running variance below zero."""
    found = vector.copy()
    found[BUFFERS[-1]] = -0.1
    return found


def test_buffers_are_the_running_statistics_and_no_parameter():
    """Two layers of four and eight: a mean and a variance each; scale and offset are trained."""
    names = [slot.name for slot in layout(TASK.build_model()) if slot.is_buffer]
    assert names == ["0.running_mean", "0.running_var", "2.running_mean", "2.running_var"]
    assert len(BUFFERS) == 2 * (4 + 8)
    assert not without_buffers(TASK, START + 1)[BUFFERS].any()
    np.testing.assert_array_equal(without_buffers(TASK, START)[WEIGHTS], START[WEIGHTS])


def test_a_model_without_buffers_is_left_alone():
    """Nothing is copied, and there is no variance to check."""
    plain = replace(TASK, build_model=lambda: nn.Linear(4, 3))
    vector = -initial_parameters(plain, 0)
    assert without_buffers(plain, vector) is vector
    check_variances(plain, vector)


def test_one_shard_of_an_ensemble_has_its_buffers_where_the_single_model_has_them():
    """SISA's clients answer with one shard's model."""
    ensemble = shard_task(TASK, 2)
    assert not without_buffers(ensemble, START + 1)[BUFFERS].any()
    with pytest.raises(UpdateRefused):
        check_variances(ensemble, negative(START))


def test_puf_special_negates_parameters_and_leaves_buffers(learnt: Learnt):
    """Oracle: θ − η Δ in float64, Δ by ordinary training; the statistics are those of before."""
    theta = learnt.parameters
    expected = theta - 2.0 * (model_of(learnt, "u") - theta)
    expected[BUFFERS] = theta[BUFFERS]
    for at_client in (False, True):
        found = unlearn("puf-special", EXACT, learnt, SITES, [LEAVES], flip_at_client=at_client).parameters
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_puf_regular_takes_the_retained_clients_buffers(learnt: Learnt):
    """Oracle: Eqs. 8 and 9 for parameters, FedAvg without the target for buffers."""
    theta = learnt.parameters
    models = {client: (len(SITES[client]), model_of(learnt, client)) for client in SITES}
    total = sum(count for count, _ in models.values())
    rates = {client: -20.0 if client == "u" else 1.0 for client in SITES}
    expected = add_weighted(
        theta, {c: (rates[c] * count / total, model - theta) for c, (count, model) in models.items()}
    )
    del models["u"]
    expected[BUFFERS] = weighted_mean(models)[BUFFERS]
    found = unlearn("puf-regular", EXACT, learnt, SITES, [LEAVES]).parameters
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["puf-special", "gradient-ascent", "fedquit", "pga", "newton-cg", "hf-kcu", "fedau"]
)
def test_a_method_that_asks_for_no_retained_update_leaves_buffers_as_they_were(name: str, learnt: Learnt):
    """Neither the leaver's statistics, nor their negation, nor weight decay that would shrink them."""
    found = unlearn(name, EXACT, learnt, SITES, [LEAVES]).parameters
    np.testing.assert_array_equal(found[BUFFERS], learnt.parameters[BUFFERS])


@pytest.mark.parametrize(
    "trunk",
    [
        lambda: [nn.BatchNorm1d(4, affine=False)],
        lambda: [nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()],
    ],
)
def test_fedau_changes_the_head_alone_where_nothing_else_has_weights(trunk):
    """Then nothing is frozen beside it, and statistics travel with the auxiliary head's training."""
    task = replace(EXACT, build_model=lambda: nn.Sequential(*trunk(), nn.Linear(4, 3)))
    learnt = learn(task, SITES, begin(task, TRAINING), rounds=2)
    found, statistics = unlearn("fedau", task, learnt, SITES, [LEAVES]).parameters, buffer_positions(task)
    assert len(statistics)
    np.testing.assert_array_equal(found[statistics], learnt.parameters[statistics])
    assert (np.delete(found, statistics) != np.delete(learnt.parameters, statistics)).all()


@pytest.mark.parametrize("name", ["fedosd", "neggrad-plus", "mode", "fedmemprune", "federaser", "retrain"])
def test_a_method_that_trains_retained_clients_ends_with_their_buffers(name: str, learnt: Learnt):
    """Of the inputs they come near the retained ones' mean; the leaver's are around 4 and three times as spread."""
    found = unlearn(name, EXACT, learnt, SITES, [LEAVES]).parameters
    where = slice(BUFFERS[0], BUFFERS[4])
    mean = torch.cat([SITES[client].inputs for client in "rst"]).mean(dim=0).numpy()
    before, after = (np.abs(model[where] - mean) for model in (learnt.parameters, found))
    assert (after < before).all()


def test_fedosd_measures_lengths_and_directions_on_parameters():
    """With statistics that change a thousand times as much as weights the step is what it is without that change."""
    method, moved = METHODS["fedosd"], []
    problem = problem_of(method, TASK, [LEAVES], SITES, TRAINING, unlearning_rounds=1, post_training_rounds=1)
    generator = np.random.default_rng(0)
    updates = {client: generator.normal(size=START.size).astype(np.float32) for client in "ru"}
    for size in (0.0, 1000.0):
        replies = {}
        for client, update in updates.items():
            vector = update.copy()
            vector[BUFFERS] = size * np.abs(update[BUFFERS])
            replies[client] = split_buffers(TASK, method.info, Reply(vector=vector, num_examples=1))
        moved.append(method.aggregate(problem, method.begin(problem, START), replies).parameters)
    np.testing.assert_array_equal(moved[0][WEIGHTS], moved[1][WEIGHTS])
    assert (moved[1][BUFFERS] > START[BUFFERS]).all()


def test_federaser_calibrates_by_the_length_of_parameters(learnt: Learnt):
    """What it stores has whole updates; a stored statistic that is a thousand times larger lengthens no step."""
    found = []
    for factor in (1.0, 1000.0):
        stores = {"federaser": learnt.stores["federaser"].copy(), "pga": learnt.stores["pga"]}
        for client in stores["federaser"].list_keys():
            entry = dict(stores["federaser"].load(client, 2))
            entry["update"] = entry["update"].copy()
            entry["update"][BUFFERS] *= factor
            stores["federaser"].save(client, 2, entry)
        found.append(unlearn("federaser", EXACT, replace(learnt, stores=stores), SITES, [LEAVES]).parameters)
    np.testing.assert_array_equal(found[0], found[1])


def test_modes_degradation_model_has_statistics_of_its_own_training():
    """With those that it began with, its answers would be of another model than the one that was trained."""
    method = METHODS["mode"]
    problem = problem_of(method, TASK, [LEAVES], SITES, TRAINING)
    state, _ = exchange(method, problem, method.begin(problem, START), SITES)
    degradation = state.arrays[DEGRADATION]
    models = {
        client: (len(SITES[client]), train(TASK, START, SITES[client], seeded(problem, client)).parameters)
        for client in "rst"
    }
    np.testing.assert_allclose(degradation[BUFFERS], weighted_mean(models)[BUFFERS], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(state.parameters[BUFFERS], START[BUFFERS])


def seeded(problem: Problem, client: str):
    """How a client trains in the first exchange of MoDe."""
    return replace(problem.training, seed=local_seed(0, client, 1))


def test_pga_keeps_to_a_ball_of_parameters(learnt: Learnt):
    """A last model whose variances are a thousand times as large changes neither reference, ball nor end."""
    found = []
    for factor in (1.0, 1000.0):
        store = learnt.site_stores["u"]["pga"].copy()
        (key,) = store.list_keys()
        entry = dict(store.load(key, 2))
        entry["parameters"] = entry["parameters"].copy()
        entry["parameters"][BUFFERS] *= factor
        store.save(key, 2, entry)
        changed = replace(learnt, site_stores={**learnt.site_stores, "u": {"pga": store}})
        found.append(unlearn("pga", EXACT, changed, SITES, [LEAVES]).parameters)
    np.testing.assert_array_equal(found[0], found[1])


def test_hf_kcus_cap_is_a_share_of_parameters(learnt: Learnt):
    """Eq. 21 with θ the weights: spread statistics allow no longer step."""
    found = unlearn("hf-kcu", EXACT, learnt, SITES, [LEAVES], cap=1e-6)
    share = len(SITES["u"]) / sum(map(len, SITES.values()))
    moved = float(np.linalg.norm(found.parameters - learnt.parameters))
    assert moved == pytest.approx(share * 1e-6 * np.linalg.norm(learnt.parameters[WEIGHTS]), rel=1e-6, abs=0)


def test_not_negates_no_buffer():
    """An operator may name tensors; one that is no weight is refused."""
    with pytest.raises(MethodFailed):
        unlearn("not", TASK, Learnt(parameters=START), SITES, [LEAVES], layers="0.running_var")


class Negating(PufSpecial):
    """A method of a user's own that knows nothing of buffers, and adds the negated update."""

    info = replace(PufSpecial.info, name="negating")

    def aggregate(
        self, problem: Problem, state: UnlearningState, replies: Mapping[str, Reply]
    ) -> UnlearningState:
        terms = {client: (-20.0, reply.vector) for client, reply in replies.items()}
        return state.advance(add_weighted(state.parameters, terms), finished=True)


def test_a_users_own_method_gets_directions_without_buffers(learnt: Learnt):
    """So its buffers stay, though it does nothing about them."""
    found = unlearn(Negating(), EXACT, learnt, SITES, [LEAVES]).parameters
    np.testing.assert_array_equal(found[BUFFERS], learnt.parameters[BUFFERS])


# --- rounds, and what answers may enter


def test_a_site_with_spread_inputs_is_accepted_in_rounds():
    """Its inputs are nine times as spread as the others'; its weights moved as much as theirs."""

    def answer(variance: float) -> tuple[int, Vector]:
        model = START + np.float32(0.01)
        model[BUFFERS] = variance
        return 1, model

    answers = {"a": answer(1), "b": answer(1), "c": answer(1.1), "spread": answer(81)}
    one = OneRound(answers, task=TASK, start=START, max_update_norm=1.0)
    after = one.run()
    assert one.refused == {}
    assert after is not None
    np.testing.assert_array_equal(after, weighted_mean(answers))


def test_statistics_far_over_the_others_are_refused():
    """Averaged, such variances would make all that a layer normalises nothing; ten times as spread is let in."""
    wild = START.copy()
    wild[BUFFERS] = 1e6
    one = OneRound({"a": 0.5, "b": 0.5, "c": 0.5, "bad": (1, wild)}, task=TASK, start=START)
    one.run()
    assert list(one.refused) == ["bad"]
    assert "The norm of its running statistics' deviations is 4.9e+03" in one.refused["bad"]


def test_a_negative_running_variance_is_refused():
    """Whoever sends one is named, and the round goes on."""
    one = OneRound({"a": 0.5, "b": 0.5, "bad": (1, negative(START))}, task=TASK, start=START)
    one.run()
    assert one.refused == {"bad": "1 of its running variances are negative, which training never gives."}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [BUFFERS[0], BUFFERS[-1], np.flatnonzero(WEIGHTS)[0]])
def test_a_value_that_is_not_finite_is_refused_wherever_it_lies(place, value):
    """Running statistics count in no norm, so a finite norm says nothing of theirs."""
    wild = START.copy()
    wild[place] = value
    one = OneRound({"a": 0.5, "b": 0.5, "bad": (1, wild)}, task=TASK, start=START)
    one.run()
    assert one.refused == {"bad": f"1 of {START.size:,} values are not finite."}


def test_in_an_exchange_statistics_far_over_the_others_are_refused():
    """Of those that train on what they keep, for theirs become the model's."""
    method = METHODS["retrain"]
    problem = problem_of(method, TASK, [LEAVES], SITES, TRAINING)
    asked = PendingExchange(
        problem=problem,
        info=method.info,
        model=START,
        nodes={"r": 1, "s": 2, "t": 3},
        starts=dict.fromkeys("rst", START),
    )
    replies = {name: Reply(vector=START + 0.1 - START, num_examples=1) for name in "rst"}
    replies["t"].vector[BUFFERS] = 1e6
    assert list(asked.check_all(replies, FedAvg(TASK)).refused) == ["t"]


@pytest.mark.parametrize(("client", "refused"), [("r", True), ("u", False)])
def test_in_an_exchange_only_buffers_that_the_method_may_use_are_checked(client: str, refused: bool):
    """A target may negate its update itself; what it says of buffers is not used."""
    method = METHODS["puf-regular"]
    problem = problem_of(method, TASK, [LEAVES], SITES, TRAINING)
    asked = PendingExchange(
        problem=problem,
        info=method.info,
        model=START,
        nodes={"r": 1, "u": 2},
        starts={"r": START, "u": START},
    )
    replies = {name: Reply(vector=np.zeros_like(START), num_examples=1) for name in "ru"}
    replies[client] = replace(replies[client], vector=negative(START) - START)
    checked = asked.check_all(replies, FedAvg(TASK))
    assert list(checked.refused) == ([client] if refused else [])
    assert all(not reply.vector[BUFFERS].any() for reply in checked.accepted.values())


def test_a_second_update_is_where_a_partial_targets_buffers_come_from():
    """Of what it forgets nothing counts; both directions are without buffers."""
    reply = Reply(vector=START + 1, num_examples=1, arrays={RETAINED_UPDATE: START + 2})
    found = split_buffers(TASK, METHODS["neggrad-plus"].info, reply)
    assert found.buffers is not None
    np.testing.assert_array_equal(found.buffers, (START + 2)[BUFFERS])
    assert not found.vector[BUFFERS].any()
    assert not found.arrays[RETAINED_UPDATE][BUFFERS].any()


def test_the_gate_refuses_a_model_with_a_negative_variance():
    """Such a model is finite, and what it answers is not."""
    with pytest.raises(ModelRefused):
        check_unlearned(TASK, negative(START), START)
    large = START.copy()
    large[BUFFERS] = 1e6
    check_unlearned(TASK, large, START)  # its parameters have not exploded


def test_an_answer_in_a_file_is_split_where_it_lies(tmp_path: Path) -> None:
    """No copy of any client's answer is made in memory; one in memory, which a client may still hold, stays whole."""
    in_memory = np.asarray(START + 1)
    file = SpoolFile(tmp_path, in_memory.nbytes)
    file.extend(in_memory.tobytes())
    in_file = array_of(file.mapped(), in_memory.dtype, in_memory.shape)
    found, expected = (
        split_buffers(TASK, METHODS["puf-regular"].info, Reply(vector=vector, num_examples=1))
        for vector in (in_file, in_memory)
    )
    np.testing.assert_array_equal(found.vector, expected.vector)
    np.testing.assert_array_equal(found.buffers, expected.buffers)
    assert np.shares_memory(found.vector, in_file)
    np.testing.assert_array_equal(in_memory, START + 1)
    with (tmp_path / "read-only").open("w+b") as other:
        other.write(in_memory.tobytes())
        other.flush()
        mapped = mmap(other.fileno(), 0, access=ACCESS_READ)
    read_only = array_of(mapped, in_memory.dtype, in_memory.shape)
    kept = split_buffers(TASK, METHODS["puf-regular"].info, Reply(vector=read_only, num_examples=1))
    np.testing.assert_array_equal(kept.vector, expected.vector)
    np.testing.assert_array_equal(read_only, in_memory)
