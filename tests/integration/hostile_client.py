"""The real ClientApp, but that client 2 answers each round with something worse; see `test_hostile_processes`."""

import json
from collections.abc import Callable

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

from client.app import app as honest
from tests.hostile import ARRAYS, JSON

HOSTILE = "2"
app = ClientApp()


def _array(kind: str) -> Callable[[RecordDict], RecordDict]:
    array = Array("float32", (3,), "numpy.ndarray", ARRAYS[kind])
    return lambda content: RecordDict({**content, "arrays": ArrayRecord({"vector": array})})


def _json(text: str) -> Callable[[RecordDict], RecordDict]:
    return lambda content: RecordDict({**content, "config": ConfigRecord({"json": text})})


def _count(content: RecordDict) -> RecordDict:
    return RecordDict({**content, "metrics": MetricRecord({"num-examples": 1.7e308})})


class Unreadable(Array):
    """An array whose description Flower itself cannot read again: what a hostile SuperNode may upload."""

    def deflate(self) -> bytes:
        """Brackets, where Flower writes a JSON object."""
        return add_header_to_object_body(b"[" * 100_000, self)


Unreadable.__qualname__ = "Array"  # the name that goes before the bytes


def _unreadable(content: RecordDict) -> RecordDict:
    record = ArrayRecord()
    record["vector"] = Unreadable("float32", (3,), "numpy.ndarray", b"123")
    return RecordDict({**content, "arrays": record})


def _raising(_content: RecordDict) -> RecordDict:
    raise RuntimeError("it failed\n2026-01-01 INFO server: all is well\x1b[31m\u202e" + "x" * 1_000_000)


def _filing(content: RecordDict) -> RecordDict:
    filed = [{"key": f"k{number}", "target": {"granularity": "class"}} for number in range(10_000)]
    return RecordDict({**content, "config": ConfigRecord({"json": json.dumps({"site-requests": filed})})})


FORGED: dict[str, Callable[[RecordDict], RecordDict]] = {
    "deep JSON": _json(JSON["100,000 lists in each other"]),
    "shape of 10^12": _array("shape of 10^12"),
    "long text": _array("text of 100,000 letters"),
    "brackets": _array("9,000 brackets"),
    "count": _count,
    "raising": _raising,
    "unreadable": _unreadable,
    "filing": _filing,
}
"""One a round, in this order."""


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, and if this is client 2 say something else."""
    reply = honest(message, context)
    if str(context.node_config["client-id"]) != HOSTILE:
        return reply
    number = int(message.metadata.group_id)
    forge = list(FORGED.values())[(number - 1) % len(FORGED)]
    return Message(forge(reply.content), reply_to=message)


@app.query("whoami")
def whoami(message: Message, context: Context) -> Message:
    """As the honest one."""
    return honest(message, context)
