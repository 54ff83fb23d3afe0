"""Flower's mods around training and unlearning: what they change, what is refused, and what never goes past them."""

import pickle
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, arrays_size_mod, message_size_mod
from flwr.supercore.task_identity import TaskIdentity

from client import make_client_app
from client.mods import work_through_mods
from server.ledger import Ledger
from server.state_directory.ledger_address import ledger_url
from strategies.messages import (
    TRAIN,
    UNLEARN,
    compose,
    failure_values,
    instruction_values,
    model_record,
    reply_content,
    reply_of,
    vector_of,
)
from tests.raising import raises, refuses
from tests.small_app import SmallApp, load_site, make_task
from unlearning.errors import AppError, TrainingFailed
from unlearning.methods.method import Instruction, Reply
from unlearning.methods.updates import RETAINED_UPDATE
from unlearning.requests import Status
from unlearning.training import TrainingSettings

NORM = 0.01


def halve(message: Message, context: Context, call_next: Any) -> Message:
    """A mod that sends half of the change by training."""
    before = message.content.array_records["arrays"]["vector"].numpy()
    reply = call_next(message, context)
    after = reply.content.array_records["arrays"]["vector"].numpy()
    half = before + (after - before) / 2
    reply.content.array_records["arrays"] = ArrayRecord({"vector": Array(half.astype(before.dtype))})
    return reply


def drop_an_array(message: Message, context: Context, call_next: Any) -> Message:
    reply = call_next(message, context)
    reply.content.array_records["arrays"] = ArrayRecord({})
    return reply


def shorten(message: Message, context: Context, call_next: Any) -> Message:
    reply = call_next(message, context)
    record = reply.content.array_records["arrays"]
    record["vector"] = Array(record["vector"].numpy()[:-1])
    return reply


def add_an_array(message: Message, context: Context, call_next: Any) -> Message:
    message.content.array_records["arrays"]["more"] = Array(np.zeros(2))
    return call_next(message, context)


def skip(message: Message, context: Context, call_next: Any) -> Message:
    return Message(message.content, reply_to=message)


def fail(message: Message, context: Context, call_next: Any) -> Message:
    raise ValueError("no budget left")


def let_pass(message: Message, context: Context, call_next: Any) -> Message:
    return call_next(message, context)


def clip_and_add_nothing() -> LocalDpMod:
    """Flower's local DP with its clipping alone."""
    return LocalDpMod(NORM, sensitivity=0.0, epsilon=1.0, delta=1e-5)


def updates(app: SmallApp, kind: str) -> list[np.ndarray]:
    """What each message of a type sent as a change of the model."""
    found = []
    for message, reply in app.answers:
        if message.metadata.message_type == kind:
            sent = vector_of(message.content.array_records["arrays"])
            back = vector_of(reply.content.array_records["arrays"])
            found.append(back - sent if kind == TRAIN else back)
    return found


def test_a_mod_changes_what_is_sent_by_its_factor(tmp_path):
    """Half of every client's change of the model goes out."""
    plain, halved = SmallApp(tmp_path / "a"), SmallApp(tmp_path / "b", mods=[halve])
    plain.run(rounds=1)
    halved.run(rounds=1)
    for one, other in zip(updates(plain, TRAIN), updates(halved, TRAIN), strict=True):
        np.testing.assert_allclose(other, one / 2, rtol=1e-4, atol=1e-8)


def test_what_the_server_receives_is_clipped_in_training_and_unlearning(tmp_path):
    """Local DP's clipping holds for rounds, and for both updates of a target that keeps a part of its data."""
    app = SmallApp(tmp_path, mods=[clip_and_add_nothing()])
    app.run(requests="at=2 client=1 samples=e1,e2 method=puf-regular")
    retained = [
        reply.content.array_records["arrays"]["retained"].numpy()
        for message, reply in app.answers
        if message.metadata.message_type == UNLEARN and "retained" in reply.content.array_records["arrays"]
    ]
    assert len(retained) == 1
    for sent in (updates(app, TRAIN), updates(app, UNLEARN), retained):
        norms = [float(np.linalg.norm(update)) for update in sent]
        assert NORM * 0.99 < min(norms) <= max(norms) <= NORM * 1.001


def test_what_mods_cannot_treat_is_not_sent_in_the_clear():
    """Newton-CG asks for gradients and products, which no mod of Flower's is for."""
    with raises(AppError, "mod") as refused:
        unlearning_answer((message_size_mod, clip_and_add_nothing()), "newton-cg")
    assert "LocalDpMod" in str(refused.value)
    assert "Federated Newton-CG" in str(refused.value)
    assert failure_values(refused.value)["is-final"]


def test_what_a_preparation_sends_beside_the_model_is_refused(tmp_path):
    """HF-online's vectors would go past a privacy mod."""
    app = SmallApp(tmp_path, mods=[clip_and_add_nothing()])
    with pytest.raises(TrainingFailed):
        app.run(rounds=1, prepare="hf-online", local_epochs=1)
    assert len(app.errors(TRAIN)) == 3
    assert "prepared.hf-online" in app.errors(TRAIN)[0]
    with pytest.raises(TrainingFailed):  # the deletion of a client that never trained changes nothing
        app.run(rounds=2, prepare="hf-online", local_epochs=1, requests="at=1 client=1 method=natural")


def test_what_every_mod_refuses_is_not_tried_again(tmp_path):
    """No answer of a retained client can be used, and asking again cannot help."""
    SmallApp(tmp_path, mods=[clip_and_add_nothing()]).run(rounds=1, requests="at=1 client=1 method=newton-cg")
    request = Ledger.open(ledger_url(tmp_path)).requests.get("r-000001")
    assert (request.status, request.attempts) == (Status.FAILED, 1)
    assert "LocalDpMod" in request.reason


TINY = Reply(vector=np.full(3, 1e-9, np.float32), num_examples=1)


def unlearning_answer(mods: tuple[Any, ...], method: str, answer: Reply = TINY) -> Reply:
    """What is sent where the method's client half answers with `answer`, after the mods."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    instruction = Instruction(operation="", model=np.full(3, 0.1, np.float32), training=TrainingSettings())
    values = instruction_values(method, instruction)
    message = compose(1, UNLEARN, 1, values, model_record(instruction.model))
    content = reply_content(answer, {})
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    return reply_of(work_through_mods(mods, lambda _: content, message, context))


@pytest.mark.parametrize(
    ("mods", "method"),
    [((message_size_mod, arrays_size_mod), "newton-cg"), ((let_pass, message_size_mod), "puf-special")],
)
def test_what_mods_leave_alone_keeps_its_bits(mods, method):
    """An update far below the model's rounding; Flower's two mods that log sizes hinder no method."""
    assert unlearning_answer(mods, method).vector.tolist() == [np.float32(1e-9)] * 3


def test_mods_are_shown_a_model_and_the_server_gets_its_change():
    """Half of each update in its direction: that of what is forgotten, and that of what a target keeps."""
    update, kept = (np.array(values, np.float32) for values in ([0.2, -0.4, 0.6], [-0.8, 0.1, 0.3]))
    both = Reply(vector=update, num_examples=1, arrays={RETAINED_UPDATE: kept})
    found = unlearning_answer((halve,), "puf-regular", both)
    np.testing.assert_allclose(found.vector, update / 2, rtol=1e-5)
    np.testing.assert_allclose(found.arrays[RETAINED_UPDATE], kept / 2, rtol=1e-5)


def test_the_noise_of_local_dp_is_not_that_of_the_run_s_seed(tmp_path):
    """Two runs with one seed send different noise: one that could be computed would protect nothing."""
    sent = []
    for name in ("a", "b"):
        app = SmallApp(tmp_path / name, mods=[LocalDpMod(NORM, 1e-3, 1.0, 1e-5)])
        app.run(rounds=1)
        sent.append(updates(app, TRAIN)[0])
    assert not np.allclose(*sent)


@pytest.mark.parametrize(
    ("mod", "said"),
    [
        (drop_an_array, "drop_an_array changes the number or the shapes of arrays"),
        (shorten, "shorten changes the number or the shapes of arrays"),
        (add_an_array, "add_an_array changes the number or the shapes of arrays"),
        (skip, "skip answers without call_next"),
        (fail, "fail raised ValueError: no budget left"),
        (adaptiveclipping_mod, "adaptiveclipping_mod refuses: "),
        (lambda message, context, call_next: call_next(message, context) and None, "must return a Message"),
    ],
)
def test_a_mod_that_is_in_the_way_is_named(tmp_path, mod, said):
    """The client's answer is one sentence, and none of its numbers."""
    app = SmallApp(tmp_path, mods=[mod])
    with pytest.raises(TrainingFailed):
        app.run(rounds=1)
    assert len(app.errors(TRAIN)) == 3
    assert all(said in text for text in app.errors(TRAIN))


@pytest.mark.parametrize("mods", [[3], ["clip"], [LocalDpMod], [halve, None], halve, "halve"])
def test_what_is_no_mod_is_refused_when_the_app_is_made(mods):
    """Before any message."""
    with refuses("mods"):
        make_client_app(make_task, load_site, table="own", mods=mods)


def test_an_app_with_mods_is_sent_to_another_process_with_them():
    """Ray gets the app with every message."""
    app = make_client_app(make_task, load_site, table="own", mods=[message_size_mod])
    assert pickle.loads(pickle.dumps(app))._made_of[-1] == (message_size_mod,)
