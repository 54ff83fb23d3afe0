"""HF-online in a federation against exact federated retraining with the same seeds, batches and participants."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.raising import raises
from tests.unit.unlearning.certified.problems import LOGISTIC, blobs
from unlearning.certified.linear_head import feature_norm
from unlearning.certified.sealed_vectors import create_key
from unlearning.certified.sensitivity import Weighting
from unlearning.errors import (
    ConfigurationError,
    DataError,
    MethodFailed,
    StoreFull,
    UpdateRefused,
)
from unlearning.methods.hf_online_kept import LENGTHS_KEY, kept_rounds, kept_vector
from unlearning.methods.hf_online_records import NOT_DECLARED, WORK
from unlearning.methods.hf_online_vectors import VECTORS, CarryVectors
from unlearning.methods.method import PreparedStore, Problem
from unlearning.methods.preparation import FederatedRound, LocalRound
from unlearning.methods.registry import METHODS, validated_parameters
from unlearning.parameters import Vector, content_hash, weighted_mean
from unlearning.requests import Exclusions, Forget, Granularity, Target
from unlearning.runtime.stores import DirectoryStore, MemoryStore, Store
from unlearning.training import Trained, TrainingSettings, initial_parameters, local_seed, train

METHOD = METHODS["hf-online"]
DATA = {name: blobs(20, seed=number) for number, name in enumerate(("u", "v", "x", "y"))}
TRAINING = TrainingSettings(epochs=2, batch_size=6, learning_rate=0.2, weight_decay=0.05, momentum=0.3)
START = initial_parameters(LOGISTIC, 0)
ROUNDS: Mapping[int, tuple[str, ...]] = {
    1: ("u", "v", "x", "y"),
    2: ("u", "x", "y"),
    3: ("v", "x", "y"),
    4: ("u", "v", "x"),
    5: ("u", "v", "x", "y"),
}
"""Who takes part: not everybody every time, as where clients are sampled or absent."""

COUNTS = dict.fromkeys(DATA, 20)
GONE = Exclusions().including([Target(Granularity.CLIENT, "u")])


def local_round(client: str, number: int, model: Vector, arrays=None) -> LocalRound:
    return LocalRound(
        client_id=client,
        number=number,
        task=LOGISTIC,
        model=model,
        examples=DATA[client],
        training=replace(TRAINING, seed=local_seed(0, client, number)),
        store=MemoryStore(),
        arrays=arrays or {},
    )


def ordinary(work: LocalRound) -> Trained:
    return train(work.task, work.model, work.examples, work.training)


def prepared(options: CarryVectors, work: LocalRound) -> Trained:
    return options.train(work, lambda: ordinary(work))


def finished_round(
    number: int, model: Vector = START, after: Vector | None = None, **known
) -> FederatedRound:
    """A round from `model` to the model after it, the same if none is given, as the server has it."""
    return FederatedRound(number=number, before=model, after=model if after is None else after, **known)


def federation(
    counts: Mapping[str, int],
    options: CarryVectors,
    store: Store,
    *,
    model: Vector = START,
    rounds=tuple(ROUNDS),
    without: frozenset[str] = frozenset(),
) -> Vector:
    """Prepared rounds among all but `without`, which were forgotten before; the store then has the vectors."""
    forgotten = Exclusions().including(Target(Granularity.CLIENT, client) for client in without)
    for number in rounds:
        sent = options.send(number, store, forgotten)
        models, arrays = {}, {}
        for client in ROUNDS[number]:
            if client in without:
                continue
            work = local_round(client, number, model, sent)
            trained = prepared(options, work)
            models[client], arrays[client] = (counts[client], trained.parameters), work.returns
        after = weighted_mean(models)
        done = finished_round(number, model, after, models=models, arrays=arrays, forgotten=forgotten)
        options.keep(replace(done, task=LOGISTIC, training=TRAINING), store)
        model = after
    return model


def retrained(
    counts: Mapping[str, int],
    without: frozenset[str],
    weighting=Weighting.RENORMALISED,
    rounds=tuple(ROUNDS),
) -> Vector:
    """The same rounds without these clients; with fixed weights they send the model back as it came."""
    model = START
    for number in rounds:
        names = ROUNDS[number]
        models = {
            name: (counts[name], ordinary(local_round(name, number, model)).parameters)
            for name in names
            if name not in without
        }
        if weighting is Weighting.FIXED:
            models |= {name: (counts[name], model) for name in names if name in without}
        model = weighted_mean(models)
    return model


def problem(store: Store, options=None, clients=("u",), num_examples=None, **parameters) -> Problem:
    return Problem(
        task=LOGISTIC,
        targets=dict.fromkeys(clients, Forget(everything=True)),
        retained=("x",),
        num_examples=num_examples or {},
        schedule=lambda _: TRAINING,
        training=TRAINING,
        parameters=validated_parameters(METHOD, parameters),
        kept=PreparedStore(preparation=options or CarryVectors(), store=store, next_store=MemoryStore()),
    )


def unlearned(model: Vector, store: Store, *, clients=("u",), **options) -> Vector:
    return METHOD.begin(problem(store, clients=clients, **options), model).parameters


def distance(one: Vector, other: Vector) -> float:
    return float(np.linalg.norm(one - other))


@pytest.mark.parametrize("weighting", list(Weighting))
def test_the_error_is_of_second_order(weighting):
    """A client of half the weight is forgotten with a quarter of the error, which is small."""
    errors, moves = [], []
    for own in (4, 2):
        counts = {"u": own, "v": 100, "x": 100, "y": 100}
        store, options = MemoryStore(), CarryVectors(weighting=weighting)
        model = federation(counts, options, store)
        exact = retrained(counts, frozenset("u"), weighting)
        errors.append(distance(unlearned(model, store, options=options), exact))
        moves.append(distance(model, exact))
    assert errors[0] < 0.03 * moves[0]
    assert moves[0] / moves[1] == pytest.approx(2, rel=0.05)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)


def test_two_clients_together_are_the_sum_of_their_vectors():
    """Their joint deletion is of second order too: halve both weights, and a quarter of the error is left."""
    errors = []
    for own in (10, 5):
        counts = {"u": own, "v": own, "x": 100, "y": 100}
        store = MemoryStore()
        model = federation(counts, CarryVectors(), store)
        together = unlearned(model, store, clients=("u", "v"))
        exact = retrained(counts, frozenset("uv"))
        assert distance(together, exact) < 0.1 * distance(model, exact)
        one_by_one = unlearned(unlearned(model, store, clients=("u",)), store, clients=("v",))
        np.testing.assert_allclose(together, one_by_one, rtol=1e-12)
        errors.append(distance(together, exact))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)


def test_after_a_deletion_the_others_vectors_stay_right():
    """u goes after three rounds, v after two more: the error against training without both is of second order."""
    errors = []
    for own in (10, 5):
        counts = {"u": own, "v": own, "x": 100, "y": 100}
        store, options = MemoryStore(), CarryVectors()
        model = unlearned(federation(counts, options, store, rounds=(1, 2, 3)), store)
        options.erase(store, GONE, until=3, rewritten=False)
        model = federation(counts, options, store, model=model, rounds=(4, 5), without=frozenset("u"))
        exact = retrained(counts, frozenset("uv"))
        errors.append(distance(unlearned(model, store, clients=("v",)), exact))
        assert errors[-1] < 0.1 * distance(model, exact)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)


def test_repairing_comes_closer_to_retraining_that_trains_on_in_the_same_way():
    """u goes after three rounds and two more follow: the error wears off, and is of second order still."""
    errors = []
    for own in (10, 5):
        counts = {"u": own, "v": 100, "x": 100, "y": 100}
        store, options, u = MemoryStore(), CarryVectors(), frozenset("u")
        model = unlearned(federation(counts, options, store, rounds=(1, 2, 3)), store)
        at_once = distance(model, retrained(counts, u, rounds=(1, 2, 3)))
        repaired = federation(counts, options, store, model=model, rounds=(4, 5), without=u)
        errors.append(distance(repaired, retrained(counts, u)))
        assert errors[-1] < 0.8 * at_once
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)


def test_carrying_vectors_changes_no_bit_of_the_model():
    """With forgettable clients and with none the federation trains the same."""
    carried = federation(COUNTS, CarryVectors(), MemoryStore())
    plain = federation(COUNTS, CarryVectors(clients="nobody"), MemoryStore())
    np.testing.assert_array_equal(carried, plain)


def test_the_first_round_sends_nothing_and_the_next_all_vectors_but_those_of_the_forgotten():
    """One row a client that has taken part, in the order of ids."""
    store, options = MemoryStore(), CarryVectors()
    assert options.send(1, store, Exclusions()) == {}
    federation(COUNTS, options, store, rounds=(1, 2))
    sent = options.send(3, store, GONE)[VECTORS]
    np.testing.assert_array_equal(sent, [kept_vector(options, store, name) for name in "vxy"])


def test_a_round_that_is_done_again_starts_from_the_vectors_before_it():
    """What a crashed round had kept does not enter itself."""
    options, once, twice = CarryVectors(), MemoryStore(), MemoryStore()
    model = federation(COUNTS, options, once, rounds=(1, 2))
    federation(COUNTS, options, once, model=model, rounds=(3,))
    federation(COUNTS, options, twice, rounds=(1, 2))
    for _ in range(2):
        federation(COUNTS, options, twice, model=model, rounds=(3,))
    for name in DATA:
        np.testing.assert_array_equal(kept_vector(options, once, name), kept_vector(options, twice, name))


def test_a_client_that_was_named_too_late_is_refused():
    """Its vector would begin in the middle; so its earlier part would stay."""
    store = MemoryStore()
    model = federation(COUNTS, CarryVectors(clients="v"), store, rounds=(1, 2))
    late = CarryVectors(clients="u,v")
    model = federation(COUNTS, late, store, model=model, rounds=(3, 4))
    assert kept_vector(late, store, "v") is not None
    with raises(MethodFailed, "no-vector"):
        METHOD.begin(problem(store, late), model)


def test_a_client_whose_samples_were_forgotten_has_no_vector_any_more():
    """The vector was computed from them; done twice, as after a crash, it comes to the same."""
    store, options = MemoryStore(), CarryVectors()
    model = federation(COUNTS, options, store)
    some = Exclusions().including([Target(Granularity.SAMPLE, "u", sample_ids=frozenset({"1"}))])
    for _ in range(2):
        assert options.erase(store, some, until=5, rewritten=False)
    assert store.rounds("u") == [5]
    assert list(store.load("u", 5)) == ["lost"]
    with raises(MethodFailed, "no-vector"):
        METHOD.begin(problem(store), model)
    assert kept_vector(options, store, "v") is not None


def test_a_forgotten_client_leaves_nothing_behind(tmp_path):
    """Its vectors are erased from disk, the others' are not."""
    store, options = DirectoryStore(tmp_path), CarryVectors()
    federation(COUNTS, options, store, rounds=(1, 2))
    assert options.erase(store, GONE, until=2, rewritten=False)
    assert store.list_keys() == [LENGTHS_KEY, "v", "x", "y"]
    assert not list(tmp_path.glob("u/*"))


def test_after_a_class_was_forgotten_it_is_not_prepared():
    """Every vector was computed from that class."""
    of_class = Exclusions().including([Target(Granularity.CLASS, class_label=1)])
    assert not CarryVectors().erase(MemoryStore(), of_class, until=2, rewritten=False)


def test_a_client_that_never_took_part_is_forgotten_without_a_change():
    """There is nothing of it in the model; one that trained and has no vector is refused."""
    model = np.arange(15.0)
    np.testing.assert_array_equal(unlearned(model, MemoryStore(), clients=("z",)), model)
    with raises(MethodFailed, "no-vector"):
        METHOD.begin(problem(MemoryStore(), clients=("z",), num_examples={"z": 5}), model)


@pytest.mark.parametrize(
    "returned",
    [
        {},
        {VECTORS: np.zeros((1, 3))},
        {VECTORS: np.zeros((2, 3), dtype=np.float32)},
        {VECTORS: np.array([[0.0, np.nan, 0.0]] * 2)},
        {VECTORS: np.array([[0.0, 1e300, 0.0]] * 2)},
    ],
)
def test_vectors_that_cannot_be_used_are_refused(returned):
    """With them the client's model is refused: a round in which one vector stood still would be wrong."""
    with pytest.raises(UpdateRefused):
        CarryVectors().check({VECTORS: np.ones((2, 3))}, returned)


def test_a_vector_that_overflows_is_lost_and_is_sent_to_nobody():
    """Clients would return no finite vector for it, and with that every model would be refused."""
    options, store = CarryVectors(), MemoryStore()
    model = federation(COUNTS, options, store, rounds=(1,))
    huge = np.full((len(DATA), model.size), np.finfo(model.dtype).max)
    models = dict.fromkeys(DATA, (20, model))
    overflown = {name: {VECTORS: huge} for name in DATA}
    options.keep(finished_round(2, model, models=models, arrays=overflown), store)
    returned = {name: {} for name in DATA}
    options.keep(finished_round(3, model, models=models, arrays=returned), store)
    assert options.send(4, store, Exclusions()) == {}


def test_more_clients_than_there_is_room_for_end_the_preparation():
    """The bound is on one set of vectors: three of 120 bytes do not fit into 0.3 KiB."""
    options = CarryVectors(max_gib=300 / 2**30)
    done = finished_round(1, models=dict.fromkeys("uvx", (20, START)))
    with pytest.raises(StoreFull):
        options.keep(done, MemoryStore())


def test_vectors_are_encrypted_where_a_key_is_named(tmp_path):
    """The same model comes out, no number of a vector is in a file, and another key opens nothing."""
    keys = [tmp_path / name for name in ("right.key", "wrong.key")]
    for path in keys:
        create_key(path)
    plain, sealed = MemoryStore(), DirectoryStore(tmp_path / "kept")
    right, wrong = (CarryVectors(key_file=str(path)) for path in keys)
    model = federation(COUNTS, CarryVectors(), plain)
    federation(COUNTS, right, sealed)
    expected = unlearned(model, plain)
    np.testing.assert_array_equal(unlearned(model, sealed, options=right), expected)
    vector = kept_vector(right, sealed, "u")
    assert vector is not None
    assert all(vector.tobytes()[:16] not in path.read_bytes() for path in tmp_path.glob("kept/*/*.npz"))
    for options in (wrong, CarryVectors()):
        with raises(MethodFailed, "vectors-unreadable"):
            METHOD.begin(problem(sealed, options), model)


def test_a_key_file_that_is_not_there_stops_the_first_round(tmp_path):
    """Before any vector is written in the clear."""
    options = CarryVectors(key_file=str(tmp_path / "none.key"))
    with pytest.raises(ConfigurationError):
        options.send(1, MemoryStore(), Exclusions())


def test_noise_has_the_calibrated_size_and_is_not_called_certified():
    """The findings say what it rests on; the noise differs each time, for no seed may give it away."""
    model = np.zeros(20_000)
    noise = {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 0.5}
    states = [METHOD.begin(problem(MemoryStore(), clients=("z",), **noise), model) for _ in range(2)]
    sigma = states[0].findings["σ"]
    assert np.std(states[0].parameters) == pytest.approx(sigma, rel=0.05)
    assert sigma == pytest.approx(0.5 * 3.730631634, rel=1e-6)
    assert not np.array_equal(states[0].parameters, states[1].parameters)
    assert states[0].findings["noise"].startswith("Calibrated noise, not certified")


def test_with_a_key_the_noise_is_that_of_the_release():
    """Done again it is the same; of another model, σ or key it is another, and without a key a new one."""
    options = CarryVectors(sigma=1.0, epsilon=1.0, delta=1e-5)
    wider = CarryVectors(sigma=1.5, epsilon=1.0, delta=1e-5)
    model, other = np.zeros(50), np.full(50, 1e-9)

    def noise(options=options, start=model, key: bytes | None = b"k" * 32):
        asked = replace(problem(MemoryStore(), options, clients=("z",)), noise_key=key)
        return METHOD.begin(asked, start).parameters - start

    np.testing.assert_array_equal(noise(), noise())
    others = [noise(start=other), noise(wider) / 1.5, noise(key=b"q" * 32), noise(key=None), noise(key=None)]
    for one in others:
        assert distance(one, noise()) > 1
    assert distance(others[-1], others[-2]) > 1


def test_the_federations_noise_has_its_sigma():
    """Whatever the request; one that brings its own is refused."""
    options = CarryVectors(sigma=0.25, epsilon=1.0, delta=1e-5)
    moved = METHOD.begin(problem(MemoryStore(), options, clients=("z",)), np.zeros(20_000))
    assert np.std(moved.parameters) == pytest.approx(0.25, rel=0.03)
    own = {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 0.5}
    with raises(MethodFailed, "noise-set-in-prepare"):
        METHOD.begin(problem(MemoryStore(), options, clients=("z",), **own), np.zeros(3))


def test_the_records_of_the_rounds_are_those_of_the_run():
    """What the bound is computed from: who, how many steps, how long; a round done again is written once."""
    options, store = CarryVectors(feature_norm=20), MemoryStore()
    before = federation(COUNTS, options, store, rounds=(1, 2))
    for _ in range(2):
        after = federation(COUNTS, options, store, model=before, rounds=(3,))
    kept = kept_rounds(options, store)
    assert [one.lengths.number for one in kept] == [1, 2, 3]
    last = kept[-1]
    assert (last.before, last.after) == (content_hash(before), content_hash(after))
    assert list(last.lengths.clients) == ["v", "x", "y"]
    assert last.lengths.clients["v"].num_steps == 8  # two epochs of four batches
    assert last.lengths.learning_rate == 0.2
    assert last.lengths.vectors.keys() == DATA.keys()
    assert last.lengths.norm == pytest.approx(np.linalg.norm(before))
    assert last.lengths.unmet == (  # this federation trains with momentum
        "It was not plain SGD (momentum, augmentation, clipping); no bound is known then.",
    )


def test_a_client_that_says_it_trained_otherwise_leaves_a_round_that_proves_nothing():
    """Other steps than the server had set, nothing that can be read, or nothing at all."""
    plain = replace(TRAINING, momentum=0.0)
    for work in (None, np.ones(4), np.ones(7), np.full(7, np.nan), np.array(["x"] * 7)):
        store, told = MemoryStore(), {"u": {} if work is None else {WORK: work}}
        done = finished_round(1, models={"u": (20, START)}, arrays=told, task=LOGISTIC, training=plain)
        CarryVectors(feature_norm=20).keep(done, store)
        (one,) = kept_rounds(CarryVectors(), store)
        assert one.lengths.unmet == (
            "Its clients did not all report that they trained as the server had set it.",
        )


def test_a_client_whose_vector_is_gone_has_no_new_one():
    """It would begin in the middle, and forget a part only."""
    options, store = CarryVectors(), MemoryStore()
    model = federation(COUNTS, options, store, rounds=(1, 2))
    store.erase("u")
    federation(COUNTS, options, store, model=model, rounds=(4,))
    assert kept_vector(options, store, "u") is None
    assert kept_vector(options, store, "v") is not None


def test_rounds_without_a_declared_feature_norm_prove_nothing():
    """The option was set after vectors had begun: of the rounds before it is said what is missing."""
    store = MemoryStore()
    model = federation(COUNTS, CarryVectors(), store, rounds=(1, 2))
    late = CarryVectors(feature_norm=20)
    federation(COUNTS, late, store, model=model, rounds=(3,))
    unmet = [NOT_DECLARED in one.lengths.unmet for one in kept_rounds(late, store)]
    assert unmet == [True, True, False]


def test_a_client_with_larger_features_than_declared_refuses_to_train():
    """Before it sends anything; with the limit taken from its own data it trains."""
    exactly, work = feature_norm(LOGISTIC, DATA["u"]), local_round("u", 1, START)
    prepared(CarryVectors(feature_norm=exactly), work)
    with pytest.raises(DataError):
        prepared(CarryVectors(feature_norm=0.99 * exactly), work)


def test_an_unnamed_client_is_refused_with_what_to_configure():
    """All of them, this one too."""
    reason = CarryVectors(clients="1,2").refusal(Target(Granularity.CLIENT, "3"))
    assert 'prepare = "hf-online clients=1,2,3"' in reason
