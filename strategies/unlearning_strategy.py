"""An unlearning method as a Flower strategy: its exchanges first, then ordinary rounds without the target.

Under Flower's stock `start()`, round 1 is the method's first exchange and the rounds after its last one
are recovery. The live loop drives the same four functions and keeps `state` in its checkpoints.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.exchange import read_each
from strategies.fedavg import FedAvg
from strategies.messages import (
    UNLEARN,
    compose,
    instruction_values,
    model_record,
    reply_of,
    vector_of,
)
from strategies.pending_exchange import PendingExchange, next_state
from strategies.round_plan import RoundOutcome
from unlearning.errors import ConfigurationError, MethodFailed
from unlearning.methods.eligibility import unfit_local_layers
from unlearning.methods.method import (
    Instructions,
    Method,
    MethodParameters,
    PreparedStore,
    Problem,
    Replies,
    UnlearningState,
)
from unlearning.methods.updates import NUM_RETAINED, none_keeps, num_retained
from unlearning.parameters import content_hash
from unlearning.pseudonyms import names_of, reveal
from unlearning.requests import NOTHING, Forget, Target
from unlearning.secure_aggregation.addends import SecureTotal
from unlearning.training import TrainingSettings

_log = getLogger(__name__)

REFUSED = "answers that were refused"
HELD_BACK = "answers that count fewer examples"
"""The findings of a method's state that say why, by client."""
SUMS_OVER, CLIPPED = "clients in the sum", "clients in it whose update was shortened to secure-clip-norm"
"""Findings under secure aggregation, of the last exchange."""


class UnlearningStrategy(Strategy):
    """Forget `targets` by `method`, then recover by `fedavg` among the retained clients.

    state: where the method stands; None before its first exchange. Give one to go on from it.
    rounds_trained, kept: how many rounds were trained, and what the server kept in them for a method that was prepared
        for; what `fedavg` knows of both, if not given.
    noise_key: what a method derives its noise from; None for the system's entropy.
    outcome: of the exchange that was aggregated last: who took part, and whose answer was refused and why.

    Raises:
        ConfigurationError: the method does not go with layers that stay at their sites.
    """

    def __init__(
        self,
        method: Method,
        targets: Iterable[Target],
        fedavg: FedAvg,
        *,
        parameters: MethodParameters | None = None,
        state: UnlearningState | None = None,
        rounds_trained: int | None = None,
        schedule: Callable[[int], TrainingSettings] | None = None,
        kept: PreparedStore | None = None,
        noise_key: bytes | None = None,
    ) -> None:
        if fedavg.task.local_layers and (reason := unfit_local_layers(method.info)):
            raise ConfigurationError([f"{reason} Choose another method."])
        self.method = method
        self.targets = tuple(targets)
        self.fedavg = fedavg
        self.parameters = parameters or method.Parameters()
        self.state = state
        self.outcome = RoundOutcome()
        self._rounds_trained = fedavg.rounds_trained if rounds_trained is None else rounds_trained
        self._schedule = schedule or fedavg.settings.training
        self._kept = kept or fedavg.plan.rules.kept_for(method.info.name)
        self._noise_key = noise_key
        self._asked: PendingExchange | None = None

    def summary(self) -> None:
        """Log what is forgotten and how."""
        what = ", ".join(target.describe() for target in self.targets)
        _log.info("Unlearning of %s by %s", what, self.method.info.title)
        self.fedavg.summary()

    @property
    def is_finished(self) -> bool:
        """Whether the unlearned model is there; what follows is recovery."""
        return self.state is not None and self.state.finished

    def forget_sets(self, online: Iterable[str]) -> dict[str, Forget]:
        """Return what each concerned client must forget: those named, and for a class every client online."""
        forgets: dict[str, Forget] = {}
        for target in self.targets:
            clients = [target.client_id] if target.client_id is not None else sorted(online)
            for client in clients:
                forgets[client] = forgets.get(client, NOTHING) | target.forget
        return {
            client: self._reveal_named(client, forget)
            for client, forget in sorted(forgets.items())
            if not self.fedavg.plan.exclusions.is_forgotten(client)
        }

    def concerns(self, client: str) -> bool:
        """Tell whether the client has something to forget."""
        return any(target.client_id in (None, client) for target in self.targets)

    def _reveal_named(self, client: str, forget: Forget) -> Forget:
        """Return `forget` with those ids in clear that the method's own preparation names: it compares them."""
        keys = self.fedavg.plan.subject_keys
        if keys is None or self._kept is None or not forget.sample_ids:
            return forget
        return reveal(forget, names_of([keys.of(client)], self._kept.preparation.named_samples))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the method's next exchange, or a recovery round when the method has finished."""
        self.fedavg.await_clients(grid)
        if self.is_finished:
            return self.fedavg.configure_train(server_round, arrays, config, grid)
        return list(self.unlearn_messages(server_round, arrays, grid).values())

    def unlearn_messages(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> dict[str, Message]:
        """Return the messages of the method's next exchange, by client id; empty where it needs no client.

        Raises:
            MethodFailed: no client that the method needs is online.
        """
        records: dict[int, ArrayRecord] = {}
        messages: dict[str, Message] = {}
        for client, instruction in sorted(self.instructions(server_round, arrays, grid).items()):
            record = model_record(instruction.model, instruction.arrays)
            if not instruction.arrays:  # the same model for many clients is one object on the wire
                record = records.setdefault(id(instruction.model), record)
            assert self._asked is not None, "instructions are asked for"
            told = self.fedavg.plan.site_values(client)
            values = {**instruction_values(self.method.info.name, instruction), **told}
            messages[client] = compose(self._asked.nodes[client], UNLEARN, server_round, values, record)
        if self.state is not None:  # mods of the user's own may need it here as well
            self.fedavg.tell(messages.values(), self.state.parameters)
        return messages

    def instructions(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> Instructions:
        """Return the method's next exchange, by client id, however it travels.

        It is empty where the method needs no client, or a private round has drawn none.

        Raises:
            MethodFailed: no client that the method needs is online, or none keeps anything. One that lacks some of
                them decides for itself when it sees the replies.
        """
        online = self.fedavg.roster.online(grid)
        targets = self.forget_sets(online)
        settings, info, private = self.fedavg.settings, self.method.info, self.fedavg.private
        able = set(self.fedavg.eligible(grid)) - self.fedavg.plan.suspended
        eligible = able - targets.keys()
        # For a training round targets that keep a part are drawn like all others.
        keeping = {client for client in able if not targets.get(client, NOTHING).everything}
        candidates = keeping if info.trains_as_rounds else eligible
        drawn = set(self.fedavg.sample(candidates, server_round))
        problem = Problem(
            task=self.fedavg.task,
            seed=settings.seed,
            rounds_trained=self._rounds_trained,
            targets=targets,
            retained=tuple(sorted(eligible if info.asks_everyone else eligible & drawn)),
            num_examples=self.fedavg.plan.num_examples,
            schedule=self._schedule,
            training=settings.training(server_round, augment=False),
            parameters=self.parameters,
            round=server_round,
            kept=self._kept,
            noise_key=self._noise_key,
            noisy_mean=None if private is None else partial(private.model, number=server_round),
            only_sums=settings.secure_aggregation,
        )
        if self.state is None:
            self.state = self.method.begin(problem, vector_of(arrays))
        self._asked = PendingExchange(problem=problem, info=self.method.info, model=self.state.parameters)
        if self.state.finished:
            return {}
        asked = self.method.configure(problem, self.state)
        if info.trains_as_rounds:
            asked = {client: item for client, item in asked.items() if client in drawn}
        may_be_empty = private is not None and info.trains_as_rounds and candidates
        if not (asked or may_be_empty):
            raise none_keeps(info.title, problem)
        instructions = {client: item for client, item in asked.items() if client in online}
        if not (instructions or may_be_empty):
            raise MethodFailed(
                f"None of the clients that {info.title} needs is online now.",
                retryable=True,
                code="no-client-online",
            )
        self._asked = replace(
            self._asked,
            nodes={client: online[client].node_id for client in instructions},
            starts={client: item.model for client, item in instructions.items()},
        )
        return instructions

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the method's next model, or the recovery round's.

        Raises:
            MethodFailed: the replies do not suffice.
        """
        if self.is_finished and self._asked is None:
            return self.fedavg.aggregate_train(server_round, replies)
        answers = self.fedavg.roster.by_client(replies)
        most = (
            None
            if self.method.info.replies_have_any_length or self.state is None
            else self.state.parameters.size
        )
        accepted, refused = read_each(answers, lambda _, message: reply_of(message.content, max_size=most))
        state = self.aggregate(accepted, refused)
        return model_record(state.parameters), None

    def aggregate(self, replies: Replies, refused: Mapping[str, str] | None = None) -> UnlearningState:
        """Compute the method's state after an exchange, from those replies that may enter it.

        refused: clients whose answer could not even be read, with the reason.

        Raises:
            MethodFailed: the replies do not suffice.
        """
        assert self.state is not None, "instructions come first"
        if self.state.finished:  # a method that needs no client is finished once it has begun
            self.outcome = RoundOutcome()
            return self._commit(self.state, {})
        assert self._asked is not None, "instructions come first"
        checked = self._asked.check_all(replies, self.fedavg)
        reasons = {**checked.refused, **(refused or {})}
        _log_refused(reasons)
        self._record(checked.accepted, reasons)  # also where the method can use none of them
        following, culprits = next_state(self.method, self._asked.problem, self.state, checked.accepted)
        is_noisy = self._asked.problem.noisy_mean is not None and self.method.info.trains_as_rounds
        _log_refused(culprits)
        reasons |= culprits
        accepted = {name: reply for name, reply in checked.accepted.items() if name not in culprits}
        self._record(accepted, reasons, content_hash(following.parameters) if is_noisy else "")
        held_back = {name: why for name, why in checked.held_back.items() if name not in culprits}
        for finding, found in ((REFUSED, reasons), (HELD_BACK, held_back)):
            if named := {**self.state.findings.get(finding, {}), **found}:
                following = replace(following, findings={**following.findings, finding: named})
        self.state, self._asked = following, None  # which has the model before
        if not self.state.finished:
            return self.state
        kept = {name: num_retained(item) for name, item in accepted.items() if NUM_RETAINED in item.values}
        return self._commit(self.state, kept)

    def aggregate_sum(self, total: SecureTotal | None) -> UnlearningState:
        """Compute the method's state after an exchange of which only the sum is known; None: there is none.

        Raises:
            MethodFailed: the round was given up, or the sum does not suffice.
        """
        assert self.state is not None, "instructions come first"
        if self.state.finished:
            return self.aggregate({})
        assert self._asked is not None, "instructions come first"
        if total is None:
            # From its beginning a solve would ask for what it has of the same model, perhaps of other clients.
            again = not (self.method.info.is_iterative and self.state.exchanges)
            raise MethodFailed(
                "The round of secure aggregation was given up.", retryable=again, code="no-secure-sum"
            )
        self.outcome = RoundOutcome(participants=total.shares, total=total)
        following = self.method.after_sum(self._asked.problem, self.state, total)
        seen = {**following.findings, SUMS_OVER: len(total.clients), CLIPPED: total.num_clipped}
        self.state = replace(following, findings=seen)
        return self._commit(self.state, {}) if self.state.finished else self.state

    def _record(self, accepted: Replies, reasons: Mapping[str, str], release: str = "") -> None:
        self.outcome = RoundOutcome(
            release=release,
            participants={client: reply.num_examples for client, reply in accepted.items()},
            refused=dict(sorted(reasons.items())),
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Do as FedAvg does."""
        return self.fedavg.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Do as FedAvg does."""
        return self.fedavg.aggregate_evaluate(server_round, replies)

    def _commit(self, state: UnlearningState, counts: Mapping[str, int]) -> UnlearningState:
        self.fedavg.follow(self.fedavg.plan.including(self.targets, counts))
        if self._kept is not None:
            self.fedavg.plan.rules.forget(self.method.info.name, self._kept.next_store)
        self._asked = None
        return state


def _log_refused(reasons: Mapping[str, str]) -> None:
    for client, reason in sorted(reasons.items()):
        _log.warning("The answer of client %s is refused: %s", client, reason)
