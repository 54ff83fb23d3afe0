"""Shadow federations beside a live one: LiRA and MIA-U on a real deletion, and what they leave alone.

Labels are half random, so a network that fits them has learnt them by heart: an attack must find them, and must
find nothing in a network retrained without them.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from client.app import app as client_app
from server.app import open_federation
from server.deletion.open_deletion import forget_sets
from server.federation.observing import observe_all
from server.federation.presence import register_clients
from server.federation.shadow_federations import ShadowFederations
from server.federation.shadow_store import ShadowStore
from server.operations.backup import back_up
from strategies.in_process_grid import InProcessGrid
from strategies.messages import TRAIN, UNLEARN, named_arrays
from strategies.settings.run_config import local_seed
from strategies.shadow_rounds import FIT_SHADOWS, TRAIN_SHADOWS, shadow_models
from tests.federation import client
from tests.kills import Killed
from unlearning.parameters import content_hash
from unlearning.requests import Status
from unlearning.tasks import load_site
from unlearning.training import train
from unlearning.verification.observations import merge
from unlearning.verification.optional_attacks import LEARNT_MIA_U, LIRA_OFFLINE, LIRA_ONLINE
from unlearning.verification.shadow_models import shadow_membership, shadow_seed
from unlearning.verification.standard_attacks import attack_figures

NUM_SHADOWS, ROUNDS = 4, 3


def write_data(path, count, seed=0):
    """Points of 60 dimensions in 4 classes, half of the labels drawn at random."""
    generator = np.random.default_rng([seed, count])
    inputs = generator.normal(size=(count, 60)).astype(np.float32)
    targets = (inputs @ np.random.default_rng(0).normal(size=(60, 4))).argmax(axis=1)
    wrong = generator.random(count) < 0.5
    targets[wrong] = generator.integers(0, 4, wrong.sum())
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, inputs=inputs, targets=targets)


def settings_of(directory, **more):
    write_data(directory / "data" / "train.npz", 240)
    write_data(directory / "data" / "test.npz", 160)
    return {
        "attack_samples": 1000,
        "dataset": "npz",
        "data_dir": str(directory / "data"),
        "num_classes": 4,
        "input_shape": "60",
        "model": "mlp",
        "partition": "iid",
        "num_clients": 3,
        "rounds": ROUNDS,
        "local_epochs": 6,
        "batch_size": 20,
        "learning_rate": 0.4,
        "recovery_max_rounds": 0,
        "shadow_federations": NUM_SHADOWS,
        "mia_u_classifiers": True,
        **more,
    }


@pytest.fixture(scope="module")
def history(shared_federation, tmp_path_factory):
    """A federation that learns by heart, forgets client 1 by retraining, and trains two rounds more."""
    federation = shared_federation(**settings_of(tmp_path_factory.mktemp("data")))
    federation.original = federation.run()
    federation.shadows_before = ShadowStore(federation.directory).load()
    federation.request = federation.file(client("1"), "retrain")
    federation.retrained = federation.run()
    federation.last_report = federation.report(federation.request.id)
    federation.later = federation.run(rounds=ROUNDS + 2)
    return federation


@pytest.mark.parametrize("attack", [LIRA_ONLINE, LIRA_OFFLINE])
def test_lira_finds_the_target_in_a_model_that_learnt_it_by_heart(history, attack):
    """Through the federation: shadow models, fits at the client, scores at the server."""
    assert history.last_report["attacks"]["before"][attack]["auc"]["low"] > 0.75


@pytest.mark.parametrize("attack", [LIRA_ONLINE, LIRA_OFFLINE])
def test_lira_finds_nothing_in_a_model_retrained_without_the_target(history, attack):
    """The interval reaches one half; it rests on all examples of the client and the test set."""
    figure = history.last_report["attacks"]["after"][attack]
    assert figure["auc"]["low"] < 0.5 < figure["auc"]["high"]
    assert (figure["num_forgotten"], figure["num_test"]) == (80, 160)


@pytest.mark.parametrize("attack", LEARNT_MIA_U.values())
def test_mia_u_finds_the_target_in_the_change_from_a_model_that_knew_it(history, attack):
    """Retraining is what the attack sees best; before the deletion there is no change."""
    assert history.last_report["attacks"]["after"][attack]["auc"]["low"] > 0.55
    assert attack not in history.last_report["attacks"]["before"]


def test_mia_u_finds_nothing_in_a_change_between_models_that_never_knew_the_target(history):
    """From the retrained model to the one two rounds later: no construction tells the target from test data."""
    forgets, observed = {}, []
    with open_federation(history.grid, history.app_run, run_id=1) as context:
        register_clients(context.ledger, context.writer, context.clients.online())
        for state in (history.retrained, history.later):
            forgets = forget_sets(context.ledger, [client("1")])
            context.clients.restrict(state)
            one = observe_all(context.clients, context.test_set, state.parameters, state.round, forgets)
            observed.append({"test": one.test, "forgotten": merge(one.forgotten.values())})
    before = {name: item.outputs for name, item in observed[0].items()}
    figures, _ = attack_figures(
        observed[1], mean_training_loss=None, outputs_before=before, seed=0, learns_change=True
    )
    assert set(LEARNT_MIA_U.values()) <= set(figures)
    for name in LEARNT_MIA_U.values():
        assert figures[name].auc.low < 0.55
        assert figures[name].auc.high > 0.45


def test_clients_and_server_draw_the_same_members(history, tmp_path):
    """A client's answer for shadow model 3 is what training on the examples that the server would name gives."""
    message = next(item for item in history.grid.sent if item.metadata.message_type == TRAIN_SHADOWS)
    (number,) = (
        int(context.node_config["client-id"])
        for node, context in history.grid.contexts.items()
        if node == message.metadata.dst_node_id
    )
    site = load_site(replace(history.settings.task(), num_clients=3), number)
    half = site.train.select(shadow_membership(site.train.ids, 3, seed=history.settings.seed))
    seed = local_seed(shadow_seed(history.settings.seed, 3), str(number), 1)
    settings = replace(history.settings.training(1), seed=seed)
    with open_federation(history.grid, history.app_run, run_id=1) as context:
        expected = train(context.task, shadow_models(message.content)[3], half, settings)
    fresh = InProcessGrid(
        client_app,
        [dict(history.grid.contexts[1001 + number].node_config, **{"state-dir": str(tmp_path)})],
        history.run_config,
    )
    message.metadata.__dict__["_dst_node_id"] = 1001
    (reply,) = fresh.send_and_receive([message])
    arrays = named_arrays(reply.content)
    np.testing.assert_array_equal(arrays["shadow.3"], expected.parameters)
    assert arrays["counts"][3] == len(half)
    assert arrays["counts"][2] + arrays["counts"][3] == len(site.train)


def test_shadow_models_travel_once_a_deletion_to_the_target_alone(history):
    """The server has its own test set, so no other client is asked; five measurements need no more of them."""
    asked = [message for message in history.grid.sent if message.metadata.message_type == FIT_SHADOWS]
    assert [message.metadata.dst_node_id for message in asked] == [history.node("1")]


def test_the_report_says_what_shadow_models_cost(history):
    """Each of 3 rounds sends the 4 models to 3 clients and back; what is beside them is under a twentieth."""
    model = history.original.parameters.nbytes
    costs = history.last_report["shadows"]
    for direction in ("bytes_sent", "bytes_received"):
        ratio = costs[direction] / (ROUNDS * NUM_SHADOWS * 3 * model)
        assert 1 < ratio < 1.05
    assert not any("shadow-federations" in text for text in history.last_report["not_measured"])


def test_a_deletion_reaches_the_shadow_models(history):
    """Those that knew client 1 are gone; the new ones began after it and never met it."""
    assert history.shadows_before.took_part == {"0": ROUNDS, "1": ROUNDS, "2": ROUNDS}
    now = ShadowStore(history.directory).load()
    assert now.exclusions == history.later.exclusions
    assert now.exclusions.is_forgotten("1")
    assert set(now.took_part) == {"0", "2"}
    assert len(list((history.directory / "shadows").iterdir())) == 1


def test_new_shadow_federations_catch_up(history):
    """Two rounds, then two after each round of the federation, until both have had five."""
    kinds = {TRAIN: "round", TRAIN_SHADOWS: "shadows"}
    node = history.node("0")
    sent = [message.metadata for message in history.grid.sent if message.metadata.dst_node_id == node]
    last = max(place for place, message in enumerate(sent) if message.message_type == UNLEARN)
    after = [kinds[message.message_type] for message in sent[last:] if message.message_type in kinds]
    assert after == ["shadows", "shadows", "round"] * 2 + ["shadows"]


@pytest.mark.parametrize(
    ("settings", "turns", "rounds", "is_due"),
    [
        ((4, 0), 0, 4, True),
        ((4, 0), 1, 4, True),
        ((4, 0), 2, 4, False),
        ((4, 0), 0, 2, False),
        ((0, 0), 0, 3, False),
        ((4, 4), 0, 4, False),
        ((4, 3), 1, 3, True),
    ],
    ids=["first", "second", "third", "level", "off", "run-over", "last-round-of-a-run"],
)
def test_two_shadow_rounds_at_most_follow_a_training_round(
    history, settings, turns, rounds, is_due, tmp_path
):
    """Shadow federations of 2 rounds beside one of `rounds`: it is held up by two rounds, its end by one."""
    store = ShadowStore(tmp_path)
    store.save(replace(history.shadows_before, rounds=2))
    chosen = SimpleNamespace(shadow_federations=settings[0], rounds=settings[1])
    shadows = ShadowFederations(settings=chosen, task=None, clients=None, test_set=None, store=store)
    assert shadows.is_due(rounds, turns) == is_due


def test_shadow_federations_leave_the_federation_alone(history, federation, tmp_path):
    """Without them it is the same, bit for bit, and so are the rounds in its ledger."""
    plain = federation(**settings_of(tmp_path, shadow_federations=0, mia_u_classifiers=False))
    assert content_hash(plain.run().parameters) == content_hash(history.original.parameters)
    request = plain.file(client("1"), "retrain")
    assert content_hash(plain.run(rounds=ROUNDS + 2).parameters) == content_hash(history.later.parameters)
    kinds = [[(record.round, record.kind) for record in one.ledger.rounds()] for one in (plain, history)]
    assert kinds[0] == kinds[1]
    assert not (plain.directory / "shadows").exists()
    report = plain.report(request.id)
    assert sum("set shadow-federations" in text for text in report["not_measured"]) == 1


def test_a_backup_holds_no_shadow_model(history, tmp_path):
    """It would outlive the deletion that erases them."""
    back_up(
        tmp_path / "backup",
        state_dir=history.directory,
        ledger_url=f"sqlite:///{history.directory / 'ledger.db'}",
        now=history.request.created_at,
    )
    assert [path for path in (tmp_path / "backup").rglob("*") if "shadows" in path.parts] == []


@pytest.mark.parametrize("is_written", [False, True], ids=["before-the-write", "after-the-write"])
def test_after_a_kill_between_shadow_rounds_they_go_on_where_they_were(
    federation, tmp_path, monkeypatch, is_written
):
    """The same shadow models and the same model, bit for bit, as without the kill."""
    few = settings_of(tmp_path, rounds=3, local_epochs=1)
    whole = federation("whole", **few)
    expected, unbroken = whole.run(), ShadowStore(whole.directory).load()
    one = federation("killed", **few)
    save = ShadowStore.save

    def killed_in_round_2(store, state):
        if is_written or state.rounds != 2:
            save(store, state)
        if state.rounds == 2:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(ShadowStore, "save", killed_in_round_2)
        with pytest.raises(Killed):
            one.run()
    assert ShadowStore(one.directory).rounds() == 1 + is_written
    one.new_grid()
    state, after = one.run(), ShadowStore(one.directory).load()
    assert content_hash(state.parameters) == content_hash(expected.parameters)
    np.testing.assert_array_equal(np.stack(after.models), np.stack(unbroken.models))
    assert after.took_part == unbroken.took_part


def test_a_kill_right_before_the_erasure_brings_no_shadow_model_back(federation, tmp_path, monkeypatch):
    """The unlearned model is committed, the old shadow models are still on disk: the next start erases them."""
    one = federation(**settings_of(tmp_path, rounds=1, local_epochs=1))
    one.run()
    request = one.file(client("1"), "natural")

    def killed(_context):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("server.federation.shadow_federations.ShadowFederations.erase", killed)
        with pytest.raises(Killed):
            one.run()
    assert "1" in ShadowStore(one.directory).load().took_part
    one.new_grid()
    one.run(shadow_federations=NUM_SHADOWS)
    assert one.ledger.requests.get(request.id).status is Status.COMPLETED
    assert "1" not in ShadowStore(one.directory).load().took_part
    report = one.report(request.id)
    assert LIRA_ONLINE in report["attacks"]["after"]


def test_a_deletion_does_not_wait_for_shadow_models_that_are_behind(federation, tmp_path):
    """The second of two deletions finds them at their beginning, says so, and is carried out."""
    one = federation(**settings_of(tmp_path, rounds=3, local_epochs=1, mia_u_classifiers=False))
    one.run()
    requests = [one.file(client(name), method) for name, method in (("0", "natural"), ("1", "puf-special"))]
    one.run()
    reports = [one.report(request.id) for request in requests]
    assert LIRA_ONLINE in reports[0]["attacks"]["after"]
    assert LIRA_ONLINE not in reports[1]["attacks"]["after"]
    notes = reports[1]["measurements"][0]["not_measured"]
    assert any("have had 0 of 3 rounds" in note for note in notes)


def test_without_a_test_set_of_the_server_clients_held_out_examples_are_compared_with(federation, tmp_path):
    """Each client owns its data; half of what it holds out is in each shadow model, and the others are asked."""
    one = federation(**settings_of(tmp_path, rounds=2, mia_u_classifiers=False, data_dir=""))
    for number, context in enumerate(one.grid.contexts.values()):
        directory = tmp_path / f"site-{number}"
        write_data(directory / "train.npz", 60, seed=number)
        write_data(directory / "test.npz", 40, seed=number)
        context.node_config["data-dir"] = str(directory)
    one.run()
    figure = one.report(one.forget(client("1"), "natural").id)["attacks"]["before"][LIRA_ONLINE]
    assert (figure["num_forgotten"], figure["num_test"]) == (60, 80)
    asked = [
        message.metadata.dst_node_id
        for message in one.grid.sent
        if message.metadata.message_type == FIT_SHADOWS
    ]
    assert asked == [one.node(name) for name in "012"]
    trained = next(item for item in one.grid.sent if item.metadata.message_type == TRAIN_SHADOWS)
    assert trained.metadata.dst_node_id == one.node("0")
