"""A ServerApp that sends the messages that a test asks for by files in `place`, by the federation's own exchange.

`N.ask` says what to send to which client and how long to wait; `N.result` says what came of it. A file `node-C-N` says
that node N is known to be client C. Ends when there is a file `end`.
"""

import json
import threading
import time
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from strategies.exchange import exchange

app = ServerApp()
WHO_TIMEOUT_S = 90.0
LOOK_S, LOOK_FOR_NODES_S = 0.3, 2.0


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve each file `N.ask` once, all side by side."""
    place = Path(str(context.run_config["place"]))
    clients: dict[int, str] = {}
    seen: set[Path] = set()
    looked_at = -LOOK_FOR_NODES_S
    while not (place / "end").exists():
        if time.monotonic() - looked_at >= LOOK_FOR_NODES_S:  # each look is work for the SuperLink
            looked_at = time.monotonic()
            for node in grid.get_nodes():
                if node.node_id not in clients:
                    clients[node.node_id] = ""
                    _start(_identify, grid, node.node_id, clients, place)
        for path in sorted(place.glob("*.ask")):
            ask = json.loads(path.read_text())
            nodes = [node for node, client in clients.items() if client == ask["client"]]
            if path not in seen and nodes:
                seen.add(path)
                _start(_serve, grid, nodes[-1], ask, path)
        time.sleep(LOOK_S)


def _start(target: Any, *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _send(grid: Grid, node: int, timeout_s: float, **told: str) -> dict[str, Any]:
    content = RecordDict({"told": ConfigRecord(dict(told))})
    message = Message(content, dst_node_id=node, message_type="query", group_id="1")
    done = exchange(grid, {"asked": message}, timeout_s=timeout_s)
    answer = {key: dict(reply["answer"]) for key, reply in done.replies.items()}.get("asked")
    return {
        "answer": answer,
        "failure": "".join(map(str, done.failures.values())),
        "seconds": done.seconds,
    }


def _identify(grid: Grid, node: int, clients: dict[int, str], place: Path) -> None:
    """Ask a node who it is until it says so: a SuperLink whose database is slow loses a message now and then."""
    while not clients[node] and not (place / "end").exists():
        answer = _send(grid, node, WHO_TIMEOUT_S, do="answer", path=str(place / f"who-{node}"))["answer"]
        if answer:
            clients[node] = answer["client-id"]
            (place / f"node-{clients[node]}-{node}").touch()
        else:
            time.sleep(1.0)


def _serve(grid: Grid, node: int, ask: dict[str, Any], path: Path) -> None:
    found = _send(grid, node, ask["timeout_s"], do=ask["do"], path=str(path.with_suffix("")))
    path.with_suffix(".new-result").write_text(json.dumps(found))
    path.with_suffix(".new-result").rename(path.with_suffix(".result"))
