"""Two exchanges in one: work that starts from a model (training, a method's step), and the measurement of that model.

A client that does both is sent the model once. The message is the work's, with what to measure under `MEASURE_TOO`
in its JSON; the answer is the work's, with arrays `measured.NAME` and, under `MEASURED`, the measurement's JSON.
A client that does one of them gets that one's message. The answers are separated again, so that each of the two
succeeds, fails and is refused as if it had been an exchange of its own.
"""

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from logging import getLogger
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from strategies.exchange import Exchange, Failure, read_each, reported_failure
from strategies.held_arrays import is_same, numbers_of
from strategies.messages import (
    ARRAYS,
    CONFIG,
    MEASURING,
    VECTOR,
    Json,
    count_bytes,
    json_record,
    record_of,
    records_of,
    told_values,
    values_of,
    with_content,
)

_log = getLogger(__name__)

MEASURE_TOO = "measure"
"""Under this key of a message's JSON stands what the model that it carries is to be measured on."""
MEASURED = "measured"
"""Under this key of an answer's JSON, and as a prefix of arrays' names, stands the measurement."""
FAILED = "failed"
"""Under this key an answer says why the work could not be done, where it carries a measurement all the same."""
SECONDS = "seconds"
"""Under this key of the measurement's JSON a client says how long it took."""
_PREFIX = f"{MEASURED}."


def join_answers(work: RecordDict, measurement: RecordDict, seconds: float) -> RecordDict:
    """Return a client's answer to a message that asks for both, made of its answers to each.

    seconds: what the measurement took.
    """
    values = told_values(work)
    values = {FAILED: values} if "error" in values else values
    measured = {**told_values(measurement), SECONDS: seconds}
    arrays = {**_arrays(work), **{f"{_PREFIX}{name}": one for name, one in _arrays(measurement).items()}}
    return _with(work, arrays, {**values, MEASURED: measured})


@dataclass(frozen=True, slots=True, kw_only=True)
class JointMessages:
    """The messages by client that two exchanges would send, for one exchange."""

    work: Mapping[str, Message]
    measurement: Mapping[str, Message]

    @property
    def is_possible(self) -> bool:
        """Whether those who are asked for both work from the very model that is measured."""
        return all(_is_same_model(self.work[client], self.measurement[client]) for client in self._both)

    @property
    def messages(self) -> dict[str, Message]:
        """One message a client, by client id, sorted."""
        joined = {client: _join(self.work[client], self.measurement[client]) for client in self._both}
        return dict(sorted({**self.measurement, **self.work, **joined}.items()))

    def separate(self, done: Exchange) -> tuple[Exchange, Exchange]:
        """Return what came of the work, and what of the measurement.

        Bytes are divided as the payloads are. Of the seconds the measurement has those that the slowest client says
        it took; all where there was no work.
        """
        both = self._both
        halves, unreadable = read_each(
            {client: done.messages[client] for client in both if client in done.messages},
            lambda client, reply: _take_apart(reply.content, done.values[client]),
        )
        failures = {
            **done.failures,
            **{who: Failure(why, is_refusal=True) for who, why in unreadable.items()},
        }
        alone = {who: reply.content for who, reply in done.messages.items() if who not in both}
        works = {**alone, **{who: work for who, (work, _) in halves.items()}}
        measurements = {**alone, **{who: measurement for who, (_, measurement) in halves.items()}}
        work = _side("work", self.work, replace(done, failures=failures), works)
        measured = _side("measurement", self.measurement, replace(done, failures=failures), measurements)
        seconds = max(map(_seconds, measured.values.values()), default=0.0) if self.work else done.seconds
        sent = _divide(done.bytes_sent, _payload(self.work), _payload(self.messages))
        came = _payload(work.messages)
        received = _divide(done.bytes_received, came, came + _payload(measured.messages))
        of_work = replace(
            work,
            refused={**done.refused, **unreadable},
            bytes_sent=sent,
            bytes_received=received,
            seconds=done.seconds - min(seconds, done.seconds),
        )
        of_measurement = replace(
            measured,
            bytes_sent=done.bytes_sent - sent,
            bytes_received=done.bytes_received - received,
            seconds=min(seconds, done.seconds),
        )
        return of_work, of_measurement

    @property
    def _both(self) -> list[str]:
        return sorted(self.work.keys() & self.measurement.keys())


def _side(
    what: str, asked: Mapping[str, Message], done: Exchange, contents: Mapping[str, RecordDict]
) -> Exchange:
    """Return what came of one of the two exchanges: of the clients `asked`, whose answers to it are `contents`."""
    failures = {client: why for client, why in done.failures.items() if client in asked}
    messages: dict[str, Message] = {}
    values: dict[str, Json] = {}
    for client, content in sorted(contents.items()):
        if client not in asked:
            continue
        told = values_of(content)
        failure = reported_failure(told)
        if failure is not None:
            _log.warning("Client %s did not do its part of the %s: %s", client, what, failure)
            failures[client] = failure
            continue
        messages[client], values[client] = copy(done.messages[client]), told
        messages[client].content = content
    return Exchange(messages=messages, values=values, failures=failures)


def _join(work: Message, measurement: Message) -> Message:
    """Return the work's message that asks for the measurement too."""
    told = told_values(work.content)
    wanted = told_values(measurement.content)
    own = {key: wanted[key] for key in MEASURING}
    config = {**records_of(work.content, ConfigRecord)[CONFIG], **json_record({**told, MEASURE_TOO: own})}
    return with_content(work, RecordDict({**work.content, CONFIG: ConfigRecord(config)}))


def _take_apart(content: RecordDict, values: Json) -> tuple[RecordDict, RecordDict]:
    """Return the two answers that `join_answers` joined; a half that is missing says so."""
    failed, measured = values.get(FAILED), values.get(MEASURED)
    own = {key: value for key, value in values.items() if key != MEASURED}
    arrays = _arrays(content)
    work = {name: one for name, one in arrays.items() if not name.startswith(_PREFIX)}
    beside = {name.removeprefix(_PREFIX): one for name, one in arrays.items() if name not in work}
    if not isinstance(measured, dict):
        measured, beside = {"error": "Its answer carries no measurement of the model."}, {}
    return (
        _with(content, work, failed if isinstance(failed, dict) else own),
        _with(RecordDict(), beside, measured),
    )


def _with(content: RecordDict, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> RecordDict:
    """Return the same records with other arrays and other JSON."""
    others = {name: record for name, record in content.items() if name != ARRAYS}
    own = {ARRAYS: record_of(arrays)} if arrays else {}
    return RecordDict({**own, **others, CONFIG: json_record(values)})


def _arrays(content: RecordDict) -> dict[str, Array]:
    return dict(records_of(content, ArrayRecord).get(ARRAYS, {}))


def _is_same_model(one: Message, other: Message) -> bool:
    first, second = (_arrays(message.content).get(VECTOR) for message in (one, other))
    if first is None or second is None:
        return first is second
    return is_same(numbers_of(VECTOR, first), numbers_of(VECTOR, second))


def _seconds(values: Json) -> float:
    """Return how long a client reports that it measured; 0 where it reports nothing plausible."""
    said: Any = values.get(SECONDS)
    return float(said) if type(said) in (int, float) and 0 <= said < math.inf else 0.0


def _payload(messages: Mapping[str, Message]) -> int:
    return sum(count_bytes(message.content) for message in messages.values())


def _divide(total: int, part: int, whole: int) -> int:
    """Return which of the `total` bytes belong to a part of the payload."""
    return min(total, total * part // whole) if whole else 0
