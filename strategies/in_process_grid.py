"""A Grid that runs its clients in this process: no network, no Ray, one after the other.

Tests and benchmarks use it; the driver code is the same as in simulation and on a deployment. Messages
pass through Flower's own serialisation, so what travels here would travel there.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

CallableApp = ClientApp | Callable[[Message, Context], Message]


class InProcessGrid(Grid):
    """A federation of `node_configs`, one node each, that runs `client_app` on each message.

    offline: node ids that are not online; change it to take nodes away and bring them back.
    broken: node ids that answer queries only and fail with all work, as when the work kills the process.
    """

    def __init__(
        self,
        client_app: CallableApp,
        node_configs: Iterable[Mapping[str, Any]],
        run_config: Mapping[str, Any],
    ) -> None:
        self._client_app = client_app
        self._run = Run.create_empty(1)
        self._ids = count(1)
        self._replies: dict[str, Message] = {}
        self.offline: set[int] = set()
        self.broken: set[int] = set()
        self.names: dict[int, str] = {}
        self.sent: list[Message] = []
        self.contexts = {
            node_id: Context(
                run_id=1,
                node_id=node_id,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for node_id, config in enumerate(node_configs, start=1001)
        }
        # Flower refuses to make messages outside of its own processes unless these are set.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message (deprecated in Flower)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes online."""
        return [node_id for node_id in self.contexts if node_id not in self.offline]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes online; those in `names` are registered with a key."""
        return [
            NodeInfo(
                node_id=node_id,
                name=self.names.get(node_id, ""),
                public_key=self.names[node_id].encode() if node_id in self.names else b"",
            )
            for node_id in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run each message at once; its answer waits to be pulled."""
        ids: list[str] = []
        for message in messages:
            message_id = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            self.sent.append(message)
            self._carry(message_id, message)
            ids.append(message_id)
        return ids

    def _carry(self, message_id: str, message: Message) -> None:
        reply = self._answer(message)
        reply.metadata.__dict__["_message_id"] = f"reply-to-{message_id}"
        self._replies[message_id] = reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to these messages, each once."""
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push and pull."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        node_id = message.metadata.dst_node_id
        is_query = message.metadata.message_type.startswith("query")
        is_broken = node_id in self.broken and not is_query
        if is_broken or node_id in self.offline or node_id not in self.contexts:
            return Message(Error(code=0, reason="The node is unavailable."), reply_to=message)
        received = message_from_proto(message_to_proto(message))
        try:
            reply = self._client_app(received, self.contexts[node_id])
        except Exception as exc:  # noqa: BLE001 - a ClientApp that raises becomes an error reply, as in Flower
            return Message(Error(code=2, reason=f"{type(exc).__name__}: {exc}"), reply_to=message)
        return message_from_proto(message_to_proto(reply))


def run_apps(
    server_app: ServerApp, client_app: ClientApp, run_config: Mapping[str, Any], *, num_clients: int
) -> InProcessGrid:
    """Run a ServerApp to its end with `num_clients` clients in this process; client i has the partition i.

    run_config: every setting of the run (`read_run_config`); `state-dir` says where checkpoints and reports go.
    """
    configs = [{"partition-id": number, "num-partitions": num_clients} for number in range(num_clients)]
    grid = InProcessGrid(client_app, configs, run_config)
    server_app(
        grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=dict(run_config))
    )
    return grid


def read_run_config(app_dir: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in the app's pyproject.toml with `changes`, tables as Flower writes them: `table.name`."""
    project = tomllib.loads((app_dir / "pyproject.toml").read_text(encoding="utf-8"))
    return {**flatten_dict(project["tool"]["flwr"]["app"].get("config", {})), **changes}
