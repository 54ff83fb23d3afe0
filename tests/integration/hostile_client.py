"""The real ClientApp, but that client 2 answers each round with something worse; see `test_hostile_processes`."""

from flwr.app import Array, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

from client.app import app as honest
from strategies.messages import json_record
from tests.hostile import ARRAYS, JSON, Forge, but_for, raw, with_array, with_json, with_metrics

HOSTILE = "2"
app = ClientApp()


class Unreadable(Array):
    """An array whose description Flower itself cannot read again: what a hostile SuperNode may upload."""

    def deflate(self) -> bytes:
        """Brackets, where Flower writes a JSON object."""
        return add_header_to_object_body(b"[" * 100_000, self)


Unreadable.__qualname__ = "Array"  # the name that goes before the bytes


def _raising(_asked: Message, _honest: RecordDict) -> Message:
    raise RuntimeError("it failed\n2026-01-01 INFO server: all is well\x1b[31m\u202e" + "x" * 1_000_000)


_FILED = [{"key": f"k{number}", "target": {"granularity": "class"}} for number in range(10_000)]
FORGED: dict[str, Forge] = {
    "deep JSON": with_json(JSON["100,000 lists in each other"]),
    "shape of 10^12": with_array(raw(ARRAYS["shape of 10^12"])),
    "long text": with_array(raw(ARRAYS["text of 100,000 letters"])),
    "brackets": with_array(raw(ARRAYS["9,000 brackets"])),
    "count": with_metrics({"num-examples": 1.7e308}),
    "raising": _raising,
    "unreadable": with_array(Unreadable("float32", (3,), "numpy.ndarray", b"123")),
    "filing": but_for(config=json_record({"site-requests": _FILED})),
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
    return forge(message, reply.content)


@app.query("whoami")
def whoami(message: Message, context: Context) -> Message:
    """As the honest one."""
    return honest(message, context)
