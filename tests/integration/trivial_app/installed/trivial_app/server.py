"""A ServerApp that asks every client a question a round and writes down who answered.

Each line of the `progress` file is one answer: round, client. With `fail-once` the app fails at its
start if there is no such file yet.
"""

import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask `num-nodes` clients, `rounds` times."""
    progress = Path(str(context.run_config["progress"]))
    if context.run_config["fail-once"] and not progress.exists():
        progress.touch()
        raise RuntimeError("This app fails the first time, as it was told.")
    for server_round in range(1, int(context.run_config["rounds"]) + 1):
        _ask_all(grid, server_round, int(context.run_config["num-nodes"]), progress)


def _ask_all(grid: Grid, server_round: int, num_nodes: int, progress: Path) -> None:
    while len(nodes := list(grid.get_node_ids())) < num_nodes:
        time.sleep(0.1)
    question = RecordDict({"question": ConfigRecord({"round": server_round})})
    waiting = set(
        grid.push_messages([Message(question, dst_node_id=node, message_type="query") for node in nodes])
    )
    while waiting:
        for answer in grid.pull_messages(waiting):
            waiting.discard(answer.metadata.reply_to_message_id)
            if not answer.has_error():
                with progress.open("a") as lines:
                    lines.write(f"{server_round} {answer.content['answer']['client-id']}\n")
        time.sleep(0.1)
