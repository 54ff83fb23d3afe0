"""The messages between server and clients: the only place that names their records and keys.

A message to a client:   arrays   ArrayRecord    the model as one flat array, and a method's own arrays
                         config   ConfigRecord   `server-round` and one JSON text, `json`
A client's reply:        arrays   ArrayRecord    the model or update as one flat array, ...
                         metrics  MetricRecord   `num-examples` and measures
                         config   ConfigRecord   one JSON text, `json`: who answers, site requests, an error,
                                                 the most memory that its work took

In training rounds methods that are prepared for may add arrays `prepared.METHOD.NAME`, both ways; most add none.
A reply to `train` is also what Flower's own FedAvg expects, so a stock strategy can drive our clients.
The model travels as one array because each array is an object of its own on the wire.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from zipfile import BadZipFile

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from unlearning.errors import DataError, FlowerUnlearningError, UpdateRefused
from unlearning.methods.method import Instruction, Reply
from unlearning.parameters import Vector
from unlearning.requests import NOTHING, Forget
from unlearning.stores import Arrays
from unlearning.training import TrainingSettings

TRAIN, UNLEARN, MEASURE, WHOAMI = "train", "train.unlearn", "evaluate", "query.whoami"
SESSION = "train.session"
VECTOR = "vector"
PREPARED = "prepared"
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
NUM_EXAMPLES = "num-examples"
ROUND = "server-round"
CLIENT_ID = "client-id"
"""The id by which the server knows the client that it asks to train, which is not always what a node declares."""

PEAK_MEMORY = "peak-memory"
"""Under this key of its JSON a client's answer says what memory its work took at most."""

Json = dict[str, Any]


def model_record(vector: Vector, beside: Mapping[str, NDArray[Any]] | None = None) -> ArrayRecord:
    """The model as an ArrayRecord with one array, and others `beside` it under their names.

    Share the record between messages: it is hashed once.
    """
    others = {name: Array(array) for name, array in (beside or {}).items()}
    return ArrayRecord({VECTOR: Array(vector), **others})


def beside_the_model(arrays: ArrayRecord) -> dict[str, NDArray[Any]]:
    """The other arrays of a record.

    Raises:
        UpdateRefused: one cannot be read.
    """
    return {name: _numpy(name, array) for name, array in arrays.items() if name != VECTOR}


def named_for_preparations(by_method: Mapping[str, Arrays]) -> dict[str, NDArray[Any]]:
    """What preparations send or return, under the names that it travels by: `prepared.METHOD.NAME`."""
    return {
        f"{PREPARED}.{method}.{name}": np.asarray(array)
        for method, arrays in by_method.items()
        for name, array in arrays.items()
    }


def by_preparation(arrays: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, NDArray[Any]]]:
    """The inverse of `named_for_preparations`; other names are passed over."""
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        kind, _, rest = name.partition(".")
        method, _, own = rest.partition(".")
        if kind == PREPARED and own:
            found.setdefault(method, {})[own] = array
    return found


def vector_of(arrays: ArrayRecord) -> Vector:
    """The one flat array of a record.

    Raises:
        UpdateRefused: there is none, or it cannot be read.
    """
    if VECTOR not in arrays:
        raise UpdateRefused(f"The reply has no array {VECTOR!r}, it has {sorted(arrays)[:5]}.")
    vector: Vector = _numpy(VECTOR, arrays[VECTOR])
    return vector


def compose(
    node_id: int,
    kind: str,
    server_round: int,
    values: Mapping[str, Any],
    arrays: ArrayRecord | None = None,
) -> Message:
    """A message of type `kind` to a node."""
    content = RecordDict({CONFIG: ConfigRecord({ROUND: server_round, "json": json.dumps(dict(values))})})
    if arrays is not None:
        content[ARRAYS] = arrays
    return Message(content, dst_node_id=node_id, message_type=kind, group_id=str(server_round))


def exclusion_values(excluded: Forget, withheld: Forget = NOTHING) -> Json:
    """What a client must leave out: `excluded` for good, `withheld` in this round only."""
    values: Json = {}
    if excluded:
        values["excluded"] = excluded.to_json()
    if withheld:
        values["withheld"] = withheld.to_json()
    return values


def training_values(training: TrainingSettings) -> Json:
    """The JSON that carries training settings."""
    return {"training": asdict(training)}


def instruction_values(method: str, instruction: Instruction) -> Json:
    """The JSON of a method's instruction; its arrays travel beside the model."""
    return {
        "method": method,
        "operation": instruction.operation,
        "training": asdict(instruction.training),
        "forget": instruction.forget.to_json(),
        "values": dict(instruction.values),
    }


def instruction_record(instruction: Instruction) -> ArrayRecord:
    """The model and the method's own arrays in one record."""
    own = {name: Array(np.asarray(value)) for name, value in instruction.arrays.items()}
    return ArrayRecord({VECTOR: Array(instruction.model), **own})


def instruction_of(message: Message) -> tuple[str, Instruction]:
    """The method's name and the instruction in a message of type `train.unlearn`."""
    model, own = _arrays_of(message.content)
    return instruction_from(values_of(message.content), model, own)


def instruction_from(
    values: Mapping[str, Any], model: Vector, arrays: Mapping[str, NDArray[Any]]
) -> tuple[str, Instruction]:
    """The method's name and the instruction whose JSON and arrays have come."""
    return values["method"], Instruction(
        operation=values["operation"],
        model=model,
        training=TrainingSettings(**values["training"]),
        forget=Forget.from_json(values["forget"]),
        arrays=arrays,
        values=values["values"],
    )


def reply_content(reply: Reply, values: Mapping[str, Any]) -> RecordDict:
    """A client's answer as records."""
    own = {name: Array(np.asarray(value)) for name, value in reply.arrays.items()}
    return RecordDict(
        {
            ARRAYS: ArrayRecord({VECTOR: Array(reply.vector), **own}),
            METRICS: MetricRecord({NUM_EXAMPLES: reply.num_examples, **reply.metrics}),
            CONFIG: ConfigRecord({"json": json.dumps({**values, "values": dict(reply.values)})}),
        }
    )


def reply_of(content: RecordDict) -> Reply:
    """The method's reply in a client's answer.

    Raises:
        UpdateRefused: a record or a value is missing or of the wrong type.
    """
    vector, own = _arrays_of(content)
    return checked_reply(vector, _metrics_of(content), own, values_of(content).get("values", {}))


def checked_reply(
    vector: Vector,
    metrics: Mapping[str, float],
    arrays: Mapping[str, NDArray[Any]],
    values: Mapping[str, Any],
) -> Reply:
    """A method's reply from its parts; the number of examples comes as one of the `metrics`.

    Raises:
        UpdateRefused: the number of examples makes no sense.
    """
    count = metrics.get(NUM_EXAMPLES, 0.0)
    if not np.isfinite(count) or count < 0:
        raise UpdateRefused(f"The reply counts {count} examples.")
    measures = {name: value for name, value in metrics.items() if name != NUM_EXAMPLES}
    return Reply(vector=vector, num_examples=int(count), metrics=measures, arrays=arrays, values=values)


def failure_values(error: FlowerUnlearningError) -> Json:
    """The JSON of an answer that the client cannot do what it was asked; asking again may help or not."""
    return {"error": f"{type(error).__name__}: {error}", "is-final": isinstance(error, DataError)}


def arrays_content(arrays: Mapping[str, NDArray[Any]], values: Mapping[str, Any]) -> RecordDict:
    """An answer of named arrays and JSON (measurements, who-am-I)."""
    content = RecordDict({CONFIG: ConfigRecord({"json": json.dumps(dict(values))})})
    if arrays:
        content[ARRAYS] = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    return content


def with_values(content: RecordDict, values: Mapping[str, Any]) -> RecordDict:
    """The same answer with `values` among its JSON."""
    config = ConfigRecord({"json": json.dumps({**values_of(content), **values})})
    return RecordDict({**content, CONFIG: config})


def named_arrays(content: RecordDict) -> dict[str, NDArray[Any]]:
    """All arrays of a message by name.

    Raises:
        UpdateRefused: one cannot be read.
    """
    if ARRAYS not in content.array_records:
        return {}
    return {name: _numpy(name, array) for name, array in content.array_records[ARRAYS].items()}


def values_of(content: RecordDict) -> Json:
    """The JSON of a message; empty where there is none (a stock strategy sends none)."""
    record = content.config_records.get(CONFIG)
    text = record.get("json", "") if record is not None else ""
    if not isinstance(text, str) or not text:
        return {}
    try:
        values = json.loads(text)
    except ValueError as exc:
        raise UpdateRefused(f"The message carries malformed JSON: {exc}.") from exc
    if not isinstance(values, dict):
        raise UpdateRefused("The message's JSON is not an object.")
    return values


def round_of(message: Message) -> int:
    """The server's round that a message belongs to; 0 where it says none."""
    record = message.content.config_records.get(CONFIG)
    value = record.get(ROUND, 0) if record is not None else 0
    return int(value) if isinstance(value, int | float) else 0


def count_bytes(content: RecordDict) -> int:
    """The payload of a message in bytes: its records as Flower counts them."""
    records = (content.array_records, content.config_records, content.metric_records)
    return sum(record.count_bytes() for group in records for record in group.values())


def _arrays_of(content: RecordDict) -> tuple[Vector, dict[str, NDArray[Any]]]:
    if ARRAYS not in content.array_records:
        raise UpdateRefused("The message carries no arrays.")
    record = content.array_records[ARRAYS]
    return vector_of(record), beside_the_model(record)


def _numpy(name: str, array: Array) -> NDArray[Any]:
    """The numbers of an array whose bytes are the sender's, so they may be anything."""
    try:
        found = array.numpy()
    except (ValueError, TypeError, OSError, EOFError, BadZipFile) as exc:
        raise UpdateRefused(f"The array {name!r} cannot be read: {type(exc).__name__}.") from exc
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiub":
        raise UpdateRefused(f"The array {name!r} does not hold numbers.")
    return found


def _metrics_of(content: RecordDict) -> dict[str, float]:
    if METRICS not in content.metric_records:
        raise UpdateRefused("The reply carries no metrics.")
    found = content.metric_records[METRICS]
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
