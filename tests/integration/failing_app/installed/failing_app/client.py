"""A ClientApp that says which process it is, waits until it may go on, and may run out of memory.

Nothing of the project's own ClientApp is in it, but what that does at SIGTERM where a message asks to `hold-as-ours`.
"""

import os
import resource
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from client.app import end_at_sigterm
from strategies.messages import arrays_content

app = ClientApp()
ROOM_BYTES = 2**28


@app.query()
def act(message: Message, context: Context) -> Message:
    """Write this process's id into `path`.pid, wait for `path`.go, answer with the client's id."""
    told = message.content["told"]
    if told["do"] == "hold-as-ours":
        return end_at_sigterm(message, context, _act)
    return _act(message, context)


def _act(message: Message, context: Context) -> Message:
    told = message.content["told"]
    path = str(told["path"])
    Path(f"{path}.new").write_text(str(os.getpid()))
    Path(f"{path}.new").rename(f"{path}.pid")
    if told["do"] == "exhaust":
        own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + ROOM_BYTES, own + ROOM_BYTES))
        bytearray(2 * ROOM_BYTES)
    if str(told["do"]).startswith("hold"):
        while not Path(f"{path}.go").exists():
            time.sleep(0.05)
    answer = ConfigRecord({"client-id": str(context.node_config["client-id"]), "pid": os.getpid()})
    content = arrays_content({}, {})  # with the protocol version, without which an answer is refused
    content["answer"] = answer
    return Message(content, reply_to=message)
