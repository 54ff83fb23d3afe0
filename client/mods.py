"""Flower's mods around the work that sends what a client has computed: training, and exchanges of unlearning methods.

    mod(message, context, call_next) -> message

A mod sees the model that came and the model that goes back, each as one array `vector`, over messages and sessions
alike. Where a method's answer is an update, the mod sees the model with it added; so what clips or adds noise to the
change by training does the same to that update. An answer that mods cannot treat so is not sent at all.

They do not run around measurements and queries, which send sums, outputs and ids but no model.
"""

from collections.abc import Callable, Iterable
from copy import copy
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import arrays_size_mod, message_size_mod
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import NDArray

from strategies.messages import ARRAYS, MOD_REFUSED, TRAIN, UNLEARN, VECTOR, instruction_of, records_of
from unlearning.errors import AppError, ConfigurationError
from unlearning.methods.registry import method_named
from unlearning.methods.updates import RETAINED_UPDATE

Work: TypeAlias = Callable[[Message], RecordDict]
"""Answers a message."""
_Shapes: TypeAlias = dict[str, dict[str, tuple[int, ...]]]

_OBSERVERS = (message_size_mod, arrays_size_mod)
"""They log sizes and change nothing, so they may run around what others could not treat."""


def checked_mods(mods: Iterable[Mod]) -> tuple[Mod, ...]:
    """Return an app's mods.

    Raises:
        ConfigurationError: one is no function or object that can be called with a message; lists each.
    """
    given = tuple(mods) if isinstance(mods, list | tuple) else (mods,)
    wrong = [one for one in given if isinstance(one, type) or not callable(one)]
    if wrong or not isinstance(mods, list | tuple):
        raise ConfigurationError(
            [
                f"mods: {one!r} is no mod. Give a list of functions (message, context, call_next) -> message, such as "
                "[fixedclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5)]; of a class, an instance."
                for one in wrong or [mods]
            ]
        )
    return given


def work_through_mods(mods: tuple[Mod, ...], work: Work, message: Message, context: Context) -> RecordDict:
    """Return the answer of `work` to a message, after the mods where they run.

    Raises:
        AppError: a mod refuses, raises, or changes the number or the shapes of arrays; or the answer would carry what
            the mods cannot treat.
    """
    kind = message.metadata.message_type
    if not mods or kind not in (TRAIN, UNLEARN):
        return work(message)
    acting = [mod for mod in mods if mod not in _OBSERVERS]
    if not acting:
        return _through(mods, work, message, context)
    names = ", ".join(map(_name, acting))
    what, is_update = "training", kind == UNLEARN
    if is_update:
        info = method_named(instruction_of(message)[0]).info
        what = info.title
        if not info.replies_are_updates:
            raise AppError(
                f"The mods of this app ({names}) treat models and updates, and {what} asks for something else of this "
                "client's data. Choose a method that asks for updates, such as puf-special, or not, which asks "
                "nothing.",
                code=MOD_REFUSED,
            )
    sent = dict(records_of(message.content, ArrayRecord)[ARRAYS])
    model = sent[VECTOR].numpy() if is_update else None
    shown = _with_arrays(message, {VECTOR: sent[VECTOR]})
    answers: list[RecordDict] = []

    def work_once(received: Message) -> RecordDict:
        content = work(_with_arrays(received, {**sent, **records_of(received.content, ArrayRecord)[ARRAYS]}))
        answers.append(content)
        beside = set(records_of(content, ArrayRecord)[ARRAYS]) - {
            VECTOR,
            *([RETAINED_UPDATE] if is_update else []),
        }
        if beside:
            raise AppError(
                f"The mods of this app ({names}) treat the model alone, and {what} sends {min(beside)} beside it. "
                "Leave out what sends it (in prepare, or the method), or the mods.",
                code=MOD_REFUSED,
            )
        return _as_model(content, VECTOR, model)

    passed = {VECTOR: _through(mods, work_once, shown, context)}
    if model is None:
        return passed[VECTOR]
    own = answers[0].array_records[ARRAYS]
    if RETAINED_UPDATE in own:  # an update as well, of what a target keeps
        passed[RETAINED_UPDATE] = _through(
            mods, lambda _: _as_model(answers[0], RETAINED_UPDATE, model), shown, context
        )
    updates = {
        name: _as_update(own[name], model, records_of(one, ArrayRecord)[ARRAYS][VECTOR])
        for name, one in passed.items()
    }
    return RecordDict({**passed[VECTOR], ARRAYS: ArrayRecord(updates)})


def _as_model(content: RecordDict, name: str, model: NDArray[Any] | None) -> RecordDict:
    """Return an answer with one array, a model: what it has under `name`, which is a change of `model` if given."""
    array = records_of(content, ArrayRecord)[ARRAYS][name]
    array = array if model is None else Array(model + array.numpy())
    return RecordDict({**content, ARRAYS: ArrayRecord({VECTOR: array})})


def _as_update(update: Array, model: NDArray[Any], passed: Array) -> Array:
    """Return the change of `model` (d,) in what the mods let through; `update` itself where they changed nothing."""
    after = passed.numpy()
    return update if np.array_equal(after, model + update.numpy()) else Array(after - model)


def _through(mods: tuple[Mod, ...], work: Work, message: Message, context: Context) -> RecordDict:
    """Return the answer of `work` as it comes out of the mods, the first of which is the outermost."""

    def answer(received: Message, _: Context) -> Message:
        return Message(work(received), reply_to=message)

    call: ClientAppCallable = reduce(lambda inner, mod: partial(_call, mod, inner), reversed(mods), answer)
    return call(message, context).content


def _call(mod: Mod, call_next: ClientAppCallable, message: Message, context: Context) -> Message:
    """Return what a mod makes of a message and of the answer to it.

    Raises:
        AppError: it refuses, raises, does not call `call_next`, or changes the number or the shapes of arrays.
    """
    expected: list[_Shapes] = []
    failed: list[Exception] = []

    def watched(received: Message, context: Context) -> Message:
        _check(mod, given, _shapes(received.content))
        try:
            reply = call_next(received, context)
        except Exception as exc:
            failed.append(exc)
            raise
        expected.append(_shapes(reply.content))
        return reply

    given = _shapes(message.content)
    try:
        reply = mod(message, context, watched)
    except Exception as exc:
        if failed or isinstance(exc, AppError):
            raise
        raise _refusal(mod, f"raised {type(exc).__name__}: {exc}") from exc
    if failed:  # whatever the mod made of it, there is no answer that it could have treated
        raise failed[0]
    if not isinstance(reply, Message):
        raise _refusal(mod, f"must return a Message, got {type(reply).__name__}")
    if reply.has_error():
        raise _refusal(mod, f"refuses: {str(reply.error.reason).rstrip('.')}")
    if not expected:
        raise _refusal(mod, "answers without call_next, so nothing was trained")
    _check(mod, expected[-1], _shapes(reply.content))
    return reply


def _check(mod: Mod, expected: _Shapes, found: _Shapes) -> None:
    if found != expected:
        raise _refusal(
            mod,
            f"changes the number or the shapes of arrays: {expected} became {found}. Keep every array as it is",
        )


def _refusal(mod: Mod, text: str) -> AppError:
    return AppError(f"The mod {_name(mod)} {text}.", code=MOD_REFUSED)


def _name(mod: Mod) -> str:
    return str(getattr(mod, "__name__", type(mod).__name__))


def _shapes(content: RecordDict) -> _Shapes:
    return {
        name: {key: tuple(array.shape) for key, array in record.items()}
        for name, record in records_of(content, ArrayRecord).items()
    }


def _with_arrays(message: Message, arrays: dict[str, Array]) -> Message:
    changed = copy(message)
    changed.content = RecordDict({**message.content, ARRAYS: ArrayRecord(arrays)})
    return changed
