"""Rounds of FedAvg among clients whose answers a test decides, on the in-process Grid."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from strategies.fedavg import FedAvg
from strategies.in_process_grid import InProcessGrid
from strategies.messages import TRAIN, WHOAMI, arrays_content, model_record, reply_content
from strategies.round_plan import RoundOutcome, RoundPlan
from unlearning.methods.method import Reply
from unlearning.parameters import Vector
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Task

START = np.array([1.0, 2.0, 3.0])
Answer = float | tuple[int, Vector] | Exception
Forge = Callable[[list[Message]], Sequence[Message]]


def app_answering(answer: Callable[[str], Reply]) -> Callable[[Message, Context], Message]:
    """A ClientApp that says which client it is, and does all work as `answer` says for the client's id."""

    def app(message: Message, context: Context) -> Message:
        client = str(context.node_config["client-id"])
        if message.metadata.message_type == WHOAMI:
            return Message(arrays_content({}, {"client-id": client}), reply_to=message)
        return Message(reply_content(answer(client), {}), reply_to=message)

    return app


class OneRound:
    """A federation whose clients answer as `answers` says at that moment; node ids count from 1001.

    An answer is a number of examples and a model, a number that is added to every parameter of `start` (of one
    example), or an error that is raised. clients: by node, where they are others than those of `answers`.
    strategy: its class.
    task: what is learnt, of which `start` is the model; without one the model is of no task's length.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer],
        clients: Sequence[str] = (),
        plan: RoundPlan | None = None,
        task: Task | None = None,
        start: Vector = START,
        strategy: type[FedAvg] = FedAvg,
        **settings: Any,
    ) -> None:
        self.start = start
        self.answers = dict(answers)
        configs = [{"client-id": name} for name in clients or answers]
        self.grid = InProcessGrid(app_answering(self._reply), configs, {})
        given = {"num_clients": len(answers), "wait_timeout_s": 0.1, **settings}
        self.strategy = strategy(task or make_task(TaskSettings()), plan=plan or RoundPlan(), **given)
        self.outcome = RoundOutcome()

    def _reply(self, client: str) -> Reply:
        answer = self.answers[client]
        if isinstance(answer, Exception):
            raise answer
        count, vector = answer if isinstance(answer, tuple) else (1, self.start + answer)
        return Reply(vector=vector, num_examples=count)

    def run(self, forge: Forge = list, number: int = 1) -> Vector | None:
        """The model after round `number`, in which the server gets what `forge` makes of the answers."""
        asked = self.strategy.configure_train(number, model_record(self.start), ConfigRecord(), self.grid)
        answers = forge(list(self.grid.send_and_receive(asked)))
        self.outcome = self.strategy.aggregate(number, answers)
        return self.outcome.model

    @property
    def refused(self) -> dict[str, str]:
        """Why, by client or node."""
        return dict(self.outcome.refused)

    def messages(self) -> dict[str, Message]:
        """What round 1 would ask of whom."""
        return self.strategy.train_messages(1, model_record(self.start), self.grid)

    def unasked(self, node_id: int) -> Message:
        """What a node answers in round 1 that the strategy has not asked."""
        asked = Message(RecordDict(), dst_node_id=node_id, message_type=TRAIN, group_id="1")
        [answer] = self.grid.send_and_receive([asked])
        return answer

    def forge_each(self, forge: Callable[[Message], Message | None]) -> None:
        """Let `forge` make of each answer that comes another one, or none."""
        pull = self.grid.pull_messages

        def pull_forged(message_ids: Iterable[str]) -> list[Message]:
            return [forged for answer in pull(message_ids) if (forged := forge(answer)) is not None]

        self.grid.pull_messages = pull_forged  # type: ignore[method-assign]
