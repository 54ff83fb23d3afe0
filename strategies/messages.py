"""The messages between server and clients: the only place that names their records and keys.

A message to a client:   arrays   ArrayRecord    the model as one flat array, and a method's own arrays
                         config   ConfigRecord   `server-round` and one JSON text, `json`
A client's reply:        arrays   ArrayRecord    the model or update as one flat array, ...
                         metrics  MetricRecord   `num-examples` and measures
                         config   ConfigRecord   one JSON text, `json`: who answers, site requests, an error,
                                                 the most memory that its work took

The JSON of both says its sender's version (`unlearning.protocol`).

In training rounds methods that are prepared for may add arrays `prepared.METHOD.NAME`, both ways; most add none.
A reply to `train` is also what Flower's own FedAvg expects, so a stock strategy can drive our clients.
The model travels as one array because each array is an object of its own on the wire.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from strategies.held_arrays import HeldArray, num_bytes, numbers_of
from unlearning.errors import DataError, FlowerUnlearningError, UpdateRefused
from unlearning.methods.method import Instruction, Reply
from unlearning.one_line import as_line
from unlearning.parameters import Vector
from unlearning.protocol import stamped
from unlearning.requests import Forget
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.runtime.stores import Arrays
from unlearning.training import TrainingSettings
from unlearning.untrusted import MAX_ARRAYS, json_object

TRAIN, UNLEARN, MEASURE, WHOAMI = "train", "train.unlearn", "evaluate", "query.whoami"
SESSION, NOTICE, KNOWN = "train.session", "query.notice", "query.known"
SECURE_STAGE = "query.secure"
"""A stage of a round of secure aggregation, but for the one with the work, whose message has `SECURE` in its JSON."""
SECURE = "secure"
VECTOR = "vector"
PREPARED = "prepared"
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
NUM_EXAMPLES = "num-examples"
ROUND = "server-round"
CLIENT_ID = "client-id"
"""The id by which the server knows the client that it asks to train, which is not always what a node declares."""

MEASURING = ("forget", "samples")
"""Under these keys a message says what its model is to be measured on: the forgotten set, and how large a sample."""

MAX_EXAMPLES = 10**12
"""No client has as many examples; counts below can be added up and multiplied without losing one."""

RECHECK = "recheck"
"""Under this key a message that measures says that it is about a completed deletion; then a site's owner must have
agreed (`client.measurements`). Under the same key the answer says what noise shows that the owner planted, if any."""

SUBJECT_KEY = "subject-key"
"""The client's key of sample ids in a message that names some of its samples (`unlearning.pseudonyms`)."""
LEDGER, AHEAD = "ledger", "ahead"
"""Which ledger speaks in a message; in an answer, that it said before that more is forgotten."""
FROZEN_PART, PROBLEM = "frozen-part", "problem"
"""Under these keys every message says the hash of what of the model stays at home, and what is wrong with the set-up of
the client's site, where there is such."""
PEAK_MEMORY, PART, SAMPLE_ACCOUNT = "peak-memory", "part", "sample-account"
"""Under these keys a client's answer says what memory its work took at most, and an answer to training which part, of
how many, of dealt-out data the site has."""
LASTING, OBSTACLE = "is-lasting", "obstacle"
"""Under these keys a client's answer says that it cannot take part, and an answer to `WHOAMI` why."""

MOD_REFUSED = "mod"
"""The code of a client's error where a mod of its app is in the way: asking again does not help."""

Json = dict[str, Any]
_Record = TypeVar("_Record", ArrayRecord, ConfigRecord, MetricRecord)


def records_of(content: RecordDict, kind: type[_Record]) -> dict[str, _Record]:
    """Return the records of a kind, by name.

    Flower's own views of them (`content.array_records`) refer to themselves: each holds the content, and so a model,
    until Python looks for such circles, which may be rounds later.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def model_record(vector: Vector, beside: Mapping[str, NDArray[Any]] | None = None) -> ArrayRecord:
    """Return the model as an ArrayRecord with one array, and those of `beside` under their names.

    Share the record between messages: it is hashed once. The arrays are not copied, so they must not change.
    """
    others = {name: np.asarray(array) for name, array in (beside or {}).items()}
    return arrays_record({VECTOR: vector, **others})


def arrays_record(
    arrays: Mapping[str, NDArray[Any]], fingerprints: Mapping[str, str] = MappingProxyType({})
) -> ArrayRecord:
    """Return named arrays as a record, without a copy; `fingerprints` of their content, where they are known."""
    return record_of({name: HeldArray(array, fingerprints.get(name, "")) for name, array in arrays.items()})


def record_of(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return these very arrays as a record; of a mapping Flower makes arrays of its own, with a copy of the bytes."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


def beside_the_model(arrays: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Return the other arrays of a record.

    Raises:
        UpdateRefused: one cannot be read, or they are too many.
    """
    _check_number(arrays)
    return {name: numbers_of(name, array) for name, array in arrays.items() if name != VECTOR}


def name_for_preparations(by_method: Mapping[str, Arrays]) -> dict[str, NDArray[Any]]:
    """Name what preparations send or return as it travels: `prepared.METHOD.NAME`."""
    return {
        f"{PREPARED}.{method}.{name}": np.asarray(array)
        for method, arrays in by_method.items()
        for name, array in arrays.items()
    }


def by_preparation(arrays: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, NDArray[Any]]]:
    """Sort arrays by method, the inverse of `name_for_preparations`; other names are passed over."""
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        kind, _, rest = name.partition(".")
        method, _, own = rest.partition(".")
        if kind == PREPARED and own:
            found.setdefault(method, {})[own] = array
    return found


def vector_of(arrays: ArrayRecord, *, max_size: int | None = None) -> Vector:
    """Return the one flat array of a record.

    max_size: how many numbers it may hold, where that is known.

    Raises:
        UpdateRefused: there is none, or it cannot be read.
    """
    if VECTOR not in arrays:
        raise UpdateRefused(f"The reply has no array {VECTOR!r}, it has {as_line(sorted(arrays)[:5], 100)}.")
    vector: Vector = numbers_of(VECTOR, arrays[VECTOR], max_size)
    return vector


def compose(
    node_id: int,
    kind: str,
    server_round: int,
    values: Mapping[str, Any],
    arrays: ArrayRecord | None = None,
) -> Message:
    """Compose a message of type `kind` to a node."""
    content = RecordDict({CONFIG: ConfigRecord({ROUND: server_round, **json_record(values)})})
    if arrays is not None:
        content[ARRAYS] = arrays
    return Message(content, dst_node_id=node_id, message_type=kind, group_id=str(server_round))


def with_content(message: Message, content: RecordDict) -> Message:
    """Return a new message of the same type, to the same node and of the same round: Flower carries none twice."""
    meta = message.metadata
    return Message(
        content, dst_node_id=meta.dst_node_id, message_type=meta.message_type, group_id=meta.group_id
    )


def instruction_values(method: str, instruction: Instruction) -> Json:
    """Return the JSON of a method's instruction; its arrays travel with the model."""
    return {
        "method": method,
        "operation": instruction.operation,
        "training": asdict(instruction.training),
        "forget": to_plain(instruction.forget),
        "values": dict(instruction.values),
    }


def instruction_of(message: Message) -> tuple[str, Instruction]:
    """Return the method's name and the instruction in a message of type `train.unlearn`."""
    values = told_values(message.content)
    model, own = _arrays_of(message.content)
    return values["method"], Instruction(
        operation=values["operation"],
        model=model,
        training=TrainingSettings(**values["training"]),
        forget=from_plain(Forget, values["forget"]),
        arrays=own,
        values=values["values"],
    )


def reply_content(reply: Reply, values: Mapping[str, Any]) -> RecordDict:
    """Return a client's answer as records."""
    return RecordDict(
        {
            ARRAYS: model_record(reply.vector, reply.arrays),
            METRICS: MetricRecord({NUM_EXAMPLES: reply.num_examples, **reply.metrics}),
            CONFIG: json_record({**values, "values": dict(reply.values)}),
        }
    )


def reply_of(content: RecordDict, *, max_size: int | None = None) -> Reply:
    """Read the method's reply in a client's answer.

    max_size: how many numbers its vector may hold, where that is known.

    Raises:
        UpdateRefused: the client says that it could not do its work; or a record or a value is missing or of the wrong
            type, or the number of examples makes no sense.
    """
    told = values_of(content)
    if "error" in told:
        raise UpdateRefused(as_line(told["error"]))
    vector, arrays = _arrays_of(content, max_size)
    sent = records_of(content, MetricRecord).get(METRICS)
    if sent is None:
        raise UpdateRefused("The reply carries no metrics.")
    metrics = {name: float(value) for name, value in sent.items() if isinstance(value, int | float)}
    count, values = metrics.pop(NUM_EXAMPLES, 0.0), told.get("values", {})
    if not 0 <= count <= MAX_EXAMPLES or count != int(count):  # NaN is in no interval
        raise UpdateRefused(f"The reply counts {count:g} examples.")
    if not isinstance(values, Mapping):
        raise UpdateRefused("The reply's values are not by name.")
    return Reply(vector=vector, num_examples=int(count), metrics=metrics, arrays=arrays, values=values)


def failure_values(error: FlowerUnlearningError) -> Json:
    """Return the JSON of an answer that the client cannot do what it was asked; asking again may help or not."""
    is_final = isinstance(error, DataError) or error.code == MOD_REFUSED
    return {"error": str(error), "is-final": is_final}


def arrays_content(arrays: Mapping[str, NDArray[Any]], values: Mapping[str, Any]) -> RecordDict:
    """Return an answer of named arrays and JSON (measurements, who-am-I)."""
    content = RecordDict({CONFIG: json_record(values)})
    if arrays:
        content[ARRAYS] = arrays_record(arrays)
    return content


def with_values(content: RecordDict, values: Mapping[str, Any]) -> RecordDict:
    """Return the same answer with `values` among its JSON."""
    return RecordDict({**content, CONFIG: json_record({**told_values(content), **values})})


def json_record(values: Mapping[str, Any]) -> ConfigRecord:
    """Return the record of a message's JSON, which says the version of this process as well."""
    return ConfigRecord({"json": json.dumps(stamped(values))})


def named_arrays(content: RecordDict) -> dict[str, NDArray[Any]]:
    """Return all arrays of a message by name.

    Raises:
        UpdateRefused: one cannot be read.
    """
    record = records_of(content, ArrayRecord).get(ARRAYS)
    if record is None:
        return {}
    _check_number(record)
    return {name: numbers_of(name, array) for name, array in record.items()}


def values_of(content: RecordDict) -> Json:
    """Return the JSON of a client's answer; empty where there is none.

    Raises:
        UpdateRefused: it is not what `unlearning.untrusted.json_object` reads.
    """
    text = text_of(content)
    return json_object(text) if text else {}


def told_values(content: RecordDict) -> Json:
    """Return the JSON that the server tells, of any length; empty where there is none (a stock strategy sends none)."""
    text = text_of(content)
    values: Json = json.loads(text) if text else {}
    return values


def text_of(content: RecordDict) -> str:
    """Return the text of a message's JSON; empty where there is none."""
    record = records_of(content, ConfigRecord).get(CONFIG)
    text = record.get("json", "") if record is not None else ""
    return text if isinstance(text, str) else ""


def config_beside(content: RecordDict) -> Json:
    """Return what a message's configuration says beside our own: what a strategy of Flower's tells clients."""
    record = records_of(content, ConfigRecord).get(CONFIG)
    return {name: value for name, value in (record or {}).items() if name not in (ROUND, "json")}


def round_of(message: Message) -> int:
    """Return the server's round that a message belongs to; 0 where it says none."""
    record = records_of(message.content, ConfigRecord).get(CONFIG)
    value = record.get(ROUND, 0) if record is not None else 0
    return int(value) if isinstance(value, int | float) else 0


def count_bytes(content: RecordDict) -> int:
    """Count the payload of a message in bytes: its records as Flower counts them."""
    arrays = [item for record in records_of(content, ArrayRecord).values() for item in record.items()]
    total = sum(len(name) + num_bytes(one) for name, one in arrays)
    total += sum(record.count_bytes() for record in records_of(content, ConfigRecord).values())
    return total + sum(record.count_bytes() for record in records_of(content, MetricRecord).values())


def _arrays_of(content: RecordDict, max_size: int | None = None) -> tuple[Vector, dict[str, NDArray[Any]]]:
    record = records_of(content, ArrayRecord).get(ARRAYS)
    if record is None:
        raise UpdateRefused("The message carries no arrays.")
    return vector_of(record, max_size=max_size), beside_the_model(record)


def _check_number(record: ArrayRecord) -> None:
    if len(record) > MAX_ARRAYS:
        raise UpdateRefused(f"It carries {len(record):,} arrays; at most {MAX_ARRAYS:,} are read.")
