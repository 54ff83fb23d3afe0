"""Exact ridge against rational arithmetic, a dense float64 oracle and federations that never had what is forgotten."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy
import torch
from torch import nn

from tests.deletions import reply
from tests.raising import raises
from tests.tasks import tiny_classification
from unlearning.errors import DataError, MethodFailed, NumericalError, UpdateRefused
from unlearning.local import answer, begin, carry_out, learn, problem_of, retained
from unlearning.methods.exact_ridge import SendSums, kept_statistics, layer_of
from unlearning.methods.method import PreparedStore, Problem
from unlearning.methods.preparation import FederatedRound
from unlearning.methods.registry import METHODS
from unlearning.methods.ridge_statistics import Statistics, parameters_of, solve
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.runtime.stores import MemoryStore
from unlearning.secure_aggregation.addends import MOST_RATE, TAIL, SecureTotal, SumTerm, addend, read_total
from unlearning.secure_aggregation.terms import RoundTerms
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings, initial_parameters

METHOD = METHODS["exact-ridge"]
TASK = tiny_classification(lambda: nn.Linear(4, 3), num_classes=3)
TRAINING = TrainingSettings()
L2 = 0.7
LAYER, ZERO = nn.Linear(4, 3), np.zeros(15)
OPTIONS = SendSums(l2=L2)
PREPARED = {"exact-ridge": OPTIONS}

CLIENT = Target(Granularity.CLIENT, "b")
SAMPLES = Target(Granularity.SAMPLE, "b", frozenset({"b-0", "b-3", "b-4"}))
CLASS = Target(Granularity.CLASS, class_label=1)


def examples(client: str, count: int) -> Examples:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 4, generator=generator)
    return Examples(inputs, torch.arange(count) % 3, np.array([f"{client}-{i}" for i in range(count)]))


DATA = {"a": examples("a", 11), "b": examples("b", 17), "c": examples("c", 8)}


def oracle(data: Mapping[str, Examples]) -> np.ndarray:
    """The ridge head by least squares on the augmented matrix, as weight and bias in one vector."""
    inputs = np.concatenate([one.inputs.numpy().astype(np.float64) for one in data.values()])
    labels = np.concatenate([one.targets.numpy() for one in data.values()])
    rows = np.vstack([np.column_stack([inputs, np.ones(len(inputs))]), np.sqrt(L2) * np.eye(5)])
    head = np.linalg.lstsq(rows, np.vstack([np.eye(3)[labels], np.zeros((5, 3))]), rcond=None)[0]
    return np.concatenate([head[:4].T.ravel(), head[4]])


def trained(data: Mapping[str, Examples], rounds: int = 2, task=TASK) -> tuple[np.ndarray, PreparedStore]:
    learnt = learn(task, data, begin(task, TRAINING, PREPARED), rounds=rounds)
    kept = learnt.kept_for("exact-ridge", MemoryStore())
    assert kept is not None
    return learnt.parameters, kept


def problem(target: Target, kept: PreparedStore, number: int = 3, data=DATA, task=TASK) -> Problem:
    given = problem_of(METHOD, task, [target], data, TRAINING)
    return replace(given, kept=kept, round=number, rounds_trained=number - 1)


def without(*targets: Target) -> dict[str, Examples]:
    """What stays of each client's examples."""
    return retained(DATA, targets)


def head_of(statistics: Iterable[Statistics], like: np.ndarray = ZERO) -> np.ndarray:
    """The model of the head of these sums, in the type of `like`."""
    return parameters_of(solve(list(statistics), L2).matrix, LAYER, like)


def rational_head(inputs: np.ndarray, labels: np.ndarray, l2: Fraction) -> np.ndarray:
    """Θ* by Gauss-Jordan elimination in rational numbers, of two classes without a bias."""
    rows = [[Fraction(value) for value in row] for row in inputs.tolist()]
    size = len(rows[0])
    table = [
        [sum(row[i] * row[j] for row in rows) + (l2 if i == j else 0) for j in range(size)]
        + [sum(row[i] for row, y in zip(rows, labels, strict=True) if y == c) for c in (0, 1)]
        for i in range(size)
    ]
    for pivot in range(size):
        table[pivot] = [value / table[pivot][pivot] for value in table[pivot]]
        for other in set(range(size)) - {pivot}:
            factor = table[other][pivot]
            table[other] = [a - factor * b for a, b in zip(table[other], table[pivot], strict=True)]
    return np.array([[float(value) for value in row[size:]] for row in table])


class TestHead:
    def test_of_one_example_by_hand(self):
        """x = 2, class 0 of 2, no bias, λ = 1: G = 4, B = (2, 0), Θ = (0.4, 0)."""
        one = Examples(torch.tensor([[2.0]]), torch.tensor([0]), np.array(["x"]))
        layer = nn.Linear(1, 2, bias=False)
        statistics = Statistics.of(one, layer)
        assert (statistics.gram.tolist(), statistics.moments.tolist()) == ([[4.0]], [[2.0, 0.0]])
        head = solve([statistics], 1.0)
        np.testing.assert_allclose(head.matrix, [[0.4, 0.0]], rtol=1e-15)
        assert parameters_of(head.matrix, layer, np.zeros(2, dtype=np.float32)).dtype == np.float32

    def test_of_several_clients_it_is_that_of_all_their_examples(self):
        """Against least squares on the augmented matrix; weight first, then bias, as in the model."""
        found = head_of(Statistics.of(one, LAYER) for one in DATA.values())
        np.testing.assert_allclose(found, oracle(DATA), rtol=1e-12)

    def test_a_lambda_that_rounding_swallows_is_an_error(self):
        """Two equal columns of 1e9 and λ = 1e-9."""
        alike = Examples(torch.full((3, 2), 1e9), torch.tensor([0, 1, 0]), np.array(["x", "y", "z"]))
        with pytest.raises(NumericalError):
            solve([Statistics.of(alike, nn.Linear(2, 2, bias=False))], 1e-9)

    def test_an_input_that_is_no_number_is_said_where_the_data_is(self):
        """A sum would only be nan."""
        broken = Examples(torch.tensor([[np.nan]]), torch.tensor([0]), np.array(["x"]))
        with pytest.raises(DataError):
            Statistics.of(broken, nn.Linear(1, 2))


class TestBound:
    @pytest.mark.parametrize("seed", range(5))
    def test_it_holds_against_rational_arithmetic_and_is_worth_something(self, seed):
        """Below 1e-10 and above what rounding has really done."""
        generator = np.random.default_rng(seed)
        inputs, labels = generator.normal(size=(12, 3)), generator.integers(0, 2, size=12)
        data = Examples(torch.from_numpy(inputs), torch.from_numpy(labels), np.arange(12).astype(str))
        head = solve([Statistics.of(data, nn.Linear(3, 2, bias=False))], 0.5)
        distance = np.linalg.norm(head.matrix - rational_head(inputs, labels, Fraction(1, 2)))
        assert distance <= head.bound < 1e-10

    def test_a_solver_that_fails_shows_in_it(self, monkeypatch):
        """It is computed of the residual: a head that is off by 0.001 cannot have a bound below that."""
        solved = scipy.linalg.cho_solve
        monkeypatch.setattr(scipy.linalg, "cho_solve", lambda *given: solved(*given) + 1e-3)
        head = solve([Statistics.of(DATA["a"], LAYER)], L2)
        assert head.bound > 1e-3


class TestArrays:
    @pytest.mark.parametrize(
        "changed",
        [
            {"gram": np.zeros(14)},
            {"gram": np.zeros(15, dtype=np.float32)},
            {"gram": np.full(15, np.inf)},
            {"gram": -np.ones(15)},
            {"moments": np.zeros(15)},
            {"moments": np.zeros((0, 3))},
            {"moments": np.full((5, 3), np.nan)},
            {"num_examples": np.array(-1)},
            {"num_examples": np.array(1.5)},
            {"num_examples": np.array([1])},
        ],
        ids=str,
    )
    def test_what_cannot_be_sums_is_refused(self, changed):
        """From a client anything may come."""
        arrays = Statistics.of(DATA["a"], LAYER).to_arrays()
        with pytest.raises(UpdateRefused):
            Statistics.from_arrays({**arrays, **changed}).check()

    @pytest.mark.parametrize(
        "forged",
        [
            lambda gram, moments, _: (-10 * gram, moments, 11),
            lambda gram, moments, _: (gram[::-1].copy(), moments, 11),
            lambda gram, moments, random: (gram + 100 * random.standard_normal(15), moments, 11),
            lambda gram, moments, _: (gram, 1000 * moments, 11),
            lambda gram, moments, _: (gram, -1000 * moments, 11),
            lambda gram, moments, _: (0 * gram, moments, 11),
            lambda gram, moments, _: (1e200 * gram, moments, 11),
            lambda gram, moments, _: (0 * gram + 1.7e308, moments, 11),
            lambda gram, moments, _: (gram, moments, 2**62),
            lambda gram, moments, _: (0 * gram + np.eye(15)[1], 0 * moments, 11),
        ],
    )
    def test_sums_that_no_data_has_are_refused_in_their_round(self, forged):
        """One of them would leave no head to solve for, and so end the run, or a bound that is none."""
        own = Statistics.of(DATA["a"], LAYER).to_arrays()
        gram, moments, count = forged(own["gram"], own["moments"], np.random.default_rng(1))
        arrays = {"gram": gram, "moments": moments, "num_examples": np.array(count)}
        with pytest.raises(UpdateRefused):
            OPTIONS.check({"head": np.zeros((5, 3))}, arrays)
        given = problem(Target(Granularity.SAMPLE, "b", frozenset({"b-1"})), trained(DATA)[1])
        begun = METHOD.begin(given, ZERO)
        with pytest.raises(UpdateRefused):
            METHOD.aggregate(given, begun, {"b": reply([], arrays=arrays)})

    def test_sums_of_data_are_taken_however_ill_conditioned_they_are(self):
        """Copies of one row, inputs of zeros, one input a million times the others, more inputs than rows."""
        random = np.random.default_rng(2)
        for case in range(60):
            count, width = int(random.integers(1, 60)), int(random.integers(1, 120))
            inputs = random.standard_normal((count, width)) * 10.0 ** random.uniform(-9, 9, width)
            inputs[:, random.random(width) < 0.2] = 0
            if case % 3 == 0:
                inputs[:] = inputs[:1]
            data = Examples(
                torch.from_numpy(inputs.astype(np.float32 if case % 2 else np.float64)),
                torch.from_numpy(random.integers(0, 3, count)),
                np.arange(count).astype(str),
            )
            layer = nn.Linear(width, 3, bias=case % 5 > 0)
            Statistics.from_arrays(Statistics.of(data, layer).to_arrays()).check()

    def test_a_client_that_sends_none_or_another_models_is_refused_in_its_round(self):
        """With its model, as any answer that cannot be used."""
        sent = {"head": np.zeros((5, 3))}
        with pytest.raises(UpdateRefused):
            OPTIONS.check(sent, {})
        with pytest.raises(UpdateRefused):
            OPTIONS.check(sent, Statistics.of(DATA["a"], nn.Linear(4, 4)).to_arrays())


class TestTraining:
    def test_the_second_round_has_the_head_of_everybody_and_the_third_the_same(self):
        """The first sends sums and moves nothing."""
        first, _ = trained(DATA, rounds=1)
        np.testing.assert_array_equal(first, initial_parameters(TASK, 0))
        second, _ = trained(DATA, rounds=2)
        np.testing.assert_allclose(second, oracle(DATA), rtol=1e-11)
        third, _ = trained(DATA, rounds=3)
        np.testing.assert_array_equal(second, third)

    def test_a_model_in_float32_is_the_rounded_head_to_the_bit(self):
        """Averaging equal models must not move the last bit."""
        single = replace(TASK, dtype=torch.float32)
        model, kept = trained(DATA, task=single)
        known = kept_statistics(kept.store)
        np.testing.assert_array_equal(model, head_of([known[client] for client in sorted(known)], model))

    def test_whoever_is_forgotten_or_waits_for_it_is_not_in_the_next_head(self):
        """A round never trains on what a request has named."""
        _, kept = trained(DATA)
        sent = OPTIONS.send(9, kept.store, Exclusions().including([CLIENT]))
        found = parameters_of(sent["head"], LAYER, ZERO)
        np.testing.assert_allclose(found, oracle(without(CLIENT)), rtol=1e-11)

    def test_a_round_that_is_done_again_starts_from_the_sums_of_the_round_before(self):
        """What round 2 has written itself is not read by it."""
        _, kept = trained({"a": DATA["a"]}, rounds=1)
        before = OPTIONS.send(2, kept.store, Exclusions())["head"]
        OPTIONS.keep(done(2, {"c": DATA["c"]}), kept.store)
        np.testing.assert_array_equal(OPTIONS.send(2, kept.store, Exclusions())["head"], before)

    def test_sums_of_another_model_are_left_out(self):
        """They passed the first round's check, which has nothing to compare with."""
        store = MemoryStore()
        OPTIONS.keep(done(1, {"a": DATA["a"], "c": DATA["c"]}, c=4), store)
        assert store.list_keys() == ["a"]


def done(number: int, data: Mapping[str, Examples], **classes: int) -> FederatedRound:
    """A round in which these clients have sent sums, of a model of so many classes where it is not of three."""
    sums = {
        client: Statistics.of(one.select(one.targets.numpy() < 2), nn.Linear(4, classes.get(client, 3)))
        for client, one in data.items()
    }
    return FederatedRound(
        number=number,
        before=ZERO,
        after=ZERO,
        models={client: (len(one), ZERO) for client, one in data.items()},
        arrays={client: one.to_arrays() for client, one in sums.items()},
    )


@pytest.mark.parametrize("target", [CLIENT, SAMPLES, CLASS], ids=lambda target: target.granularity)
def test_the_head_is_that_of_a_federation_which_never_had_it(target):
    """To the bit in float64, and so within the bound, while the deletion moves the head a lot."""
    before, kept = trained(DATA)
    state = carry_out(METHOD, problem(target, kept), before, DATA)
    retrained, _ = trained(without(target))
    np.testing.assert_array_equal(state.parameters, retrained)
    np.testing.assert_allclose(state.parameters, oracle(without(target)), rtol=1e-11)
    assert np.linalg.norm(state.parameters - before) > 0.02 * np.linalg.norm(before)
    bound = state.findings["bound on ‖θ − θ*‖"]
    assert np.linalg.norm(state.parameters - oracle(without(target))) <= bound < 1e-9
    assert state.findings["certificate"].startswith(f"exact: ‖θ − θ*‖ ≤ {bound:.3g}")


def test_in_float32_the_bound_has_the_rounding_of_the_model_too():
    """The head is off by what the type can hold: more than in float64, less than the bound."""
    single = replace(TASK, dtype=torch.float32)
    before, kept = trained(DATA, task=single)
    state = carry_out(METHOD, problem(CLIENT, kept, task=single), before, DATA)
    distance = np.linalg.norm(state.parameters.astype(np.float64) - oracle(without(CLIENT)))
    assert 1e-9 < distance <= state.findings["bound on ‖θ − θ*‖"] < 1e-6


def test_a_whole_client_is_forgotten_without_asking_anybody():
    """It need not be there, nor anybody else."""
    before, kept = trained(DATA)
    state = METHOD.begin(problem(CLIENT, kept), before)
    assert state.finished
    assert state.exchanges == 0


def test_deletions_one_after_the_other_end_where_one_of_all_would():
    """Samples, whose new sums are kept for it, then a client, then a class."""
    before, kept = trained(DATA)
    given = problem(SAMPLES, kept)
    after = carry_out(METHOD, given, before, DATA).parameters
    store = given.kept.next_store
    OPTIONS.erase(store, Exclusions().including([SAMPLES]), until=2, rewritten=True)
    assert store.list_keys() == ["a", "b", "c"]
    gone = Target(Granularity.CLIENT, "c")
    kept = replace(kept, store=store, next_store=MemoryStore())
    after = carry_out(METHOD, problem(gone, kept, number=4), after, DATA).parameters
    np.testing.assert_array_equal(after, trained(without(SAMPLES, gone))[0])


def test_of_a_class_whoever_is_away_is_left_out_until_it_sends_new_sums():
    """Its earlier sums may hold examples of the class."""
    before, kept = trained(DATA)
    here = {client: DATA[client] for client in "ab"}
    given = problem(CLASS, kept, data=here)
    state = carry_out(METHOD, given, before, here)
    np.testing.assert_array_equal(state.parameters, trained(retained(here, [CLASS]))[0])
    assert given.kept.next_store.list_keys() == ["a", "b"]


def test_without_sums_of_anybody_who_stays_it_can_be_tried_after_a_round():
    """As right after it was switched on."""
    given = problem(CLIENT, PreparedStore(preparation=OPTIONS, store=MemoryStore(), next_store=MemoryStore()))
    with pytest.raises(MethodFailed) as caught:
        METHOD.begin(given, ZERO)
    assert caught.value.retryable


def test_a_target_that_does_not_answer_ends_the_attempt_and_so_does_a_class_that_no_client_has():
    """The one for now, the other for good; sums of another model are refused."""
    before, kept = trained(DATA)
    given = problem(SAMPLES, kept)
    begun = METHOD.begin(given, before)
    with pytest.raises(MethodFailed) as caught:
        METHOD.aggregate(given, begun, {})
    assert caught.value.retryable
    of_class = problem(CLASS, kept)
    nothing = {client: reply([], 0) for client in of_class.targets}
    with raises(MethodFailed, "nothing-to-forget") as failed:
        METHOD.aggregate(of_class, METHOD.begin(of_class, before), nothing)
    assert not failed.value.retryable
    other = reply([], arrays=Statistics.of(DATA["a"], nn.Linear(4, 4)).to_arrays())
    with pytest.raises(UpdateRefused):
        METHOD.aggregate(given, begun, {"b": other})


def test_samples_that_their_site_no_longer_has_are_forgotten_by_the_sums_of_what_it_keeps():
    """As exactly as where it has them: nothing of them is subtracted."""
    before, kept = trained(DATA)
    given = problem(SAMPLES, kept)
    left = without(SAMPLES)["b"]
    answer = reply([], 0, arrays=Statistics.of(left, layer_of(TASK)).to_arrays())
    state = METHOD.aggregate(given, METHOD.begin(given, before), {"b": answer})
    np.testing.assert_allclose(state.parameters, trained(without(SAMPLES))[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_model_that_is_no_linear_layer_cannot_be_prepared_for(model):
    """Said at the start of a run, by the model's task."""
    settings = TaskSettings(dataset="fashion-mnist", model=model)
    (reason,) = OPTIONS.problems(make_task(settings), 3)
    assert "one linear layer" in reason
    assert "fashion-mnist" in reason
    assert OPTIONS.problems(make_task(replace(settings, model="logistic")), 3) == []


def test_raw_pictures_that_are_too_large_are_refused_with_what_to_do():
    """3x64x64: the sums of 12,288 inputs."""
    settings = TaskSettings(dataset="npz", model="logistic", num_classes=2, input_shape="3x64x64")
    (reason,) = OPTIONS.problems(make_task(settings), 3)
    assert "features of a frozen network" in reason


class TestSums:
    """What it does where the server sees sums over clients only."""

    TERMS = RoundTerms(
        federation="test",
        run=1,
        sequence=1,
        purpose="train",
        length=METHOD.sum_size(TASK, ZERO) + TAIL,
        num_clients=3,
        clip_norm=10.0,
        max_weight=1e6 * MOST_RATE,
    )

    def total(self, parts: Mapping[str, list[SumTerm]], clip_norm: float = 10.0) -> SecureTotal:
        terms = replace(self.TERMS, clip_norm=clip_norm)
        ring = np.sum([addend(TASK, one, 0.0, terms) for one in parts.values()], axis=0, dtype=np.uint64)
        return read_total(TASK, ring, terms, sorted(parts))

    def of_round(self, data: Mapping[str, Examples], **given: float) -> SecureTotal:
        arrays = {client: Statistics.of(one, LAYER).to_arrays() for client, one in data.items()}
        return self.total(
            {client: OPTIONS.sum_terms(ZERO, 0, one) for client, one in arrays.items()}, **given
        )

    def problem(self, target: Target, **changes: object) -> Problem:
        """Without any sums: under secure aggregation the server keeps none."""
        given = problem_of(METHOD, TASK, [target], DATA, TRAINING)
        nothing = PreparedStore(preparation=OPTIONS, store=MemoryStore(), next_store=MemoryStore())
        return replace(given, kept=nothing, only_sums=True, **changes)

    def test_a_round_makes_the_head_of_all_at_once(self):
        """Within fixed point, of which the model's bound knows."""
        found = OPTIONS.model_of_sum(TASK, ZERO, self.of_round(DATA))
        np.testing.assert_allclose(found, oracle(DATA), rtol=0, atol=1e-8)

    def test_fixed_point_is_off_by_no_more_than_the_coarseness_and_by_much_of_it(self):
        """Of three clients, against their sums in float64."""
        total, exact = self.of_round(DATA), [Statistics.of(one, LAYER) for one in DATA.values()]
        off = np.abs(
            total.step * total.num_examples - sum(one.per_example() * one.num_examples for one in exact)
        )
        assert total.coarseness / 2 < off.max() <= total.coarseness

    @pytest.mark.parametrize("target", [CLIENT, SAMPLES, CLASS], ids=lambda target: target.granularity)
    def test_a_deletion_ends_within_its_bound_of_the_head_of_what_is_left(self, target):
        """All that stay are asked, and the bound is above the distance and still worth something."""
        state = METHOD.begin(given := self.problem(target), ZERO)
        asked = METHOD.configure(given, state)
        assert sorted(asked) == sorted(without(target))
        replies = answer(METHOD, given, asked, DATA)
        parts = {client: METHOD.sum_terms(asked[client], one) for client, one in replies.items()}
        done = METHOD.after_sum(given, state, self.total(parts))
        assert done.finished
        distance = np.linalg.norm(done.parameters - oracle(without(target)))
        assert distance <= done.findings["bound on ‖θ − θ*‖"] < 1e-5
        assert done.findings["clients whose sums remain"] == len(asked)

    def test_the_bound_covers_what_fixed_point_does_to_each_number(self):
        """Sums that are off by the coarseness, in the worst direction that was found among many."""
        exact, generator = Statistics.of(DATA["a"], LAYER), np.random.default_rng(1)
        for coarseness in (1e-6, 1e-3):
            for _ in range(50):
                signs = generator.choice([-1.0, 1.0], size=exact.gram.shape)
                gram = exact.gram + coarseness * (np.triu(signs) + np.triu(signs, 1).T)
                moments = exact.moments + coarseness * generator.choice([-1.0, 1.0], size=exact.moments.shape)
                head = solve([replace(exact, gram=gram, moments=moments, coarseness=coarseness)], L2)
                assert np.linalg.norm(head.matrix - solve([exact], L2).matrix) <= head.bound

    def test_sums_that_were_shortened_make_no_head(self):
        """Neither in a round nor in a deletion."""
        clipped = self.of_round(DATA, clip_norm=1e-4)
        with pytest.raises(NumericalError, match="secure-clip-norm"):
            OPTIONS.model_of_sum(TASK, ZERO, clipped)
        with pytest.raises(MethodFailed, check=lambda exc: exc.code == "no-sum" and not exc.retryable):
            METHOD.after_sum(self.problem(CLIENT), METHOD.begin(self.problem(CLIENT), ZERO), clipped)

    def test_a_deletion_waits_for_every_client_that_stays(self):
        """A sum without it would show what it holds."""
        given = self.problem(CLIENT, retained=("a",))
        with pytest.raises(MethodFailed, match=r"Client\(s\) c are", check=lambda exc: exc.retryable):
            METHOD.configure(given, METHOD.begin(given, ZERO))
