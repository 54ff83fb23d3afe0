"""Messages of a session's grid that go by Flower after all, under the grid's own ids."""

from collections.abc import Iterable, Iterator

from flwr.app import Error, Message
from flwr.serverapp import Grid

from strategies.exchange import LOST, REFUSED
from strategies.fetching import Fetches, Lost
from strategies.messages import count_bytes


class FlowerMessages:
    """Those that `grid` carries. bytes_sent, bytes_received: of payloads."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._asked: dict[str, tuple[str, Message]] = {}  # Flower's id and the message, by ours
        self._answers = Fetches(grid)
        self.bytes_sent = self.bytes_received = 0

    def __contains__(self, key: str) -> bool:
        return key in self._asked

    def close(self) -> None:
        """Wait for none that is under way; more may be sent."""
        self._answers.close()

    def push(self, messages: list[Message]) -> None:
        """Send messages, whose ids are the session grid's."""
        keys = [message.metadata.message_id for message in messages]
        ids: Iterable[str] = self._grid.push_messages(messages) if messages else []
        for key, message, flower_id in zip(keys, messages, ids, strict=False):
            if flower_id:
                self._asked[key] = flower_id, message
                self.bytes_sent += count_bytes(message.content)

    def pull(self, keys: list[str]) -> Iterator[Message]:
        """Fetch what has come to the messages `keys`."""
        asked = {self._asked[key][0]: key for key in keys}
        for flower_id, found in self._answers.pull(list(asked)):
            if isinstance(found, Message):
                key = asked.get(found.metadata.reply_to_message_id)
                reply = found
                self.bytes_received += count_bytes(reply.content) if reply.has_content() else 0
            else:
                key = asked[flower_id]
                error = Error(LOST, found.reason) if isinstance(found, Lost) else Error(REFUSED, found)
                reply = Message(error, reply_to=self._asked[key][1])
            if key is not None:
                self._asked.pop(key, None)
                reply.metadata.__dict__["_reply_to_message_id"] = key
            yield reply
