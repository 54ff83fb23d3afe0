"""A Grid as Flower 1.43 declares it, whose `pull_messages` names its first argument otherwise and takes a second."""

from collections.abc import Iterable

import numpy as np
from flwr.app import Context, Message

from strategies.exchange import exchange
from strategies.in_process_grid import InProcessGrid
from strategies.messages import TRAIN, compose, model_record


class NewerGrid(InProcessGrid):
    """Messages may be asked for by their own ids too; answers are, by those of what they answer."""

    def pull_messages(
        self, reply_to_message_ids: Iterable[str] | None = None, *, message_ids: Iterable[str] | None = None
    ) -> Iterable[Message]:
        assert message_ids is None, "answers are asked for"
        return super().pull_messages(reply_to_message_ids or ())


def test_answers_are_fetched_by_what_they_answer():
    """Whatever the argument is called."""

    def answer(message: Message, _: Context) -> Message:
        return Message(message.content, reply_to=message)

    grid = NewerGrid(answer, [{}, {}], {})
    record = model_record(np.zeros(3, dtype=np.float32))
    asked = {
        name: compose(node, TRAIN, 1, {}, record)
        for name, node in zip("ab", grid.get_node_ids(), strict=True)
    }
    assert sorted(exchange(grid, asked, timeout_s=20.0).messages) == ["a", "b"]
