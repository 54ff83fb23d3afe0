"""The clients as the server reaches them: which are online, which may train, messages to them and their answers."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from logging import getLogger
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from server.federation.checkpoints import AskedRound
from server.federation.presence import register_clients, suspended
from server.federation.site_inbox import SiteRequests
from server.federation.site_problems import SiteProblems
from server.federation.state import FederationState
from server.ledger import WAITING, Ledger, LedgerUnavailable, LedgerWriter
from strategies.exchange import Exchange, exchange
from strategies.fedavg import FedAvg
from strategies.joint_exchange import JointMessages
from strategies.messages import MEASURE, NOTICE, TRAIN, UNLEARN, round_of
from strategies.roster import Member
from strategies.secure_exchange import exchange_securely
from unlearning.one_line import list_first
from unlearning.requests import OPEN_STATUSES, Exclusions, Status, Target
from unlearning.runtime.peak_memory import MemoryWatch, PeakMemory

_log = getLogger(__name__)

LOOK_S = 5.0
"""How often the server looks which clients are online while it waits for answers; heartbeats come every 20 s."""
SAY_AFTER = timedelta(seconds=20)
"""How long answers are waited for before the ledger says for whose."""
_SHOWN = 5  # of the clients that are waited for


@dataclass(slots=True, kw_only=True)
class Clients:
    """Flower's grid, the strategy that asks, and what outlives one exchange.

    refused: answers refused since the last round was recorded, and why, by client or `node N`.
    asked_again: how often since then, by client, because an answer was lost on its way.
    memory: watches this process during the live loop's step.
    """

    grid: Grid
    fedavg: FedAvg
    ledger: Ledger
    writer: LedgerWriter
    asked: AskedRound
    refused: dict[str, str] = field(default_factory=dict)
    asked_again: Counter[str] = field(default_factory=Counter)
    memory: MemoryWatch = field(default_factory=MemoryWatch)
    _site_requests: SiteRequests = field(default_factory=SiteRequests)
    _problems: SiteProblems = field(default_factory=SiteProblems)
    _known: frozenset[str] = frozenset()
    _waiting: dict[str, Target] = field(default_factory=dict)
    _looked_at: float = 0.0
    _said: str | None = None
    _served: tuple[str, ...] = ()

    def online(self) -> Mapping[str, Member]:
        """Return the clients that are online now, by id."""
        return self.fedavg.roster.online(self.grid)

    def online_among(self, clients: Iterable[str]) -> Mapping[str, Member]:
        """Return those of these clients that are online now, in order of their ids."""
        online = self.online()
        return {client: online[client] for client in sorted(clients) if client in online}

    def register(self, *, may_ask: bool = True) -> None:
        """Write into the ledger which clients are online; `may_ask` as in `Roster.online`."""
        self._looked_at = time.monotonic()
        online = self.fedavg.roster.online(self.grid, may_ask=may_ask)
        self._known = register_clients(self.ledger, self.writer, online)

    def await_clients(self) -> None:
        """Wait for the clients that a round needs; `clients` and `watch` show meanwhile which are online."""

        def tell(text: str) -> None:
            self._say({"text": text} if text else {})
            self._look()

        self.fedavg.await_clients(self.grid, tell=tell)

    def sample(self, number: int, without: Iterable[str]) -> list[str]:
        """Return the sample of the eligible clients that the round `number` draws, `without` some."""
        left_out = set(without)
        return self.fedavg.sample(
            (client for client in self.fedavg.eligible(self.grid) if client not in left_out), number
        )

    def restrict(self, state: FederationState) -> None:
        """Exclude forgotten clients from training, and withhold the data of open requests."""
        ledger = self.ledger
        requests = ledger.requests.select(statuses=OPEN_STATUSES - {Status.VERIFYING})
        self._site_requests.follow(ledger, requests)
        # What a request asks for never changes, and a list of ids can be long.
        new = ledger.requests.with_targets(item for item in requests if item.id not in self._waiting)
        targets = self._waiting | {item.id: target for item, target in new}
        self._waiting = {item.id: targets[item.id] for item in requests if item.id in targets}
        self._served = () if state.deletion is None else state.deletion.request_ids
        # The ledger may be a step behind the checkpoint.
        waiting = [*self._waiting.values(), *(() if state.deletion is None else state.deletion.targets)]
        plan = replace(
            self.fedavg.plan,
            exclusions=state.exclusions,
            withheld=Exclusions().including(waiting),
            counts=state.num_examples,
            known=self._known,
            kept=state.aggregation,
            answers=self._site_requests.told(),
            problems=self._problems.told or {},
            suspended=frozenset(suspended(state.suspensions, state.round + 1)),
        )
        self.fedavg.follow(plan)

    def exchange(self, messages: Mapping[str, Message]) -> Exchange:
        """Do the work of `messages`, where the run says so as a round of secure aggregation."""
        settings = self.fedavg.settings
        kinds = {message.metadata.message_type for message in messages.values()}
        if not (settings.secure_aggregation and kinds & {TRAIN, UNLEARN, MEASURE}):
            return self._exchange(messages)
        self.asked.begin(round_of(next(iter(messages.values()))))
        return exchange_securely(
            self._exchange, messages, settings, self.fedavg.task, int(self.grid.run.run_id)
        )

    def _exchange(self, messages: Mapping[str, Message]) -> Exchange:
        """Send, wait, and take in what clients filed at their own sites; say in the ledger who is waited for long."""
        timeout_s, since = self.fedavg.settings.round_timeout_s, self.writer.now()
        done = exchange(
            self.grid,
            messages,
            timeout_s=timeout_s,
            meanwhile=lambda clients: self._look(clients, since, since + timedelta(seconds=timeout_s)),
        )
        self._say({})
        self.refused |= done.refused
        self.asked_again.update(done.asked_again)
        self.refused |= self._site_requests.take_all(self.ledger, done.values, now=self.writer.now())
        for client in [name for name, failure in done.failures.items() if failure.is_lasting]:
            node_id = messages[client].metadata.dst_node_id
            self.fedavg.roster.set_aside(node_id, done.failures[client].reason)
        self._problems.take(messages, done, self.ledger, self.writer, self.fedavg.roster.unable)
        return done

    def _look(
        self,
        clients: Collection[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> None:
        """Register now and then which clients are online, for waiting can take minutes; say for whom and how long."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        with suppress(LedgerUnavailable):  # the next write says so, when the answers are there
            self.register(may_ask=False)
            if since is not None and until is not None and self.writer.now() - since >= SAY_AFTER:
                names = sorted(clients)
                times = f"since {since:%H:%M:%S}, at most until {until:%H:%M:%S} (UTC)"
                known = {"clients": names, "since": since.isoformat(), "until": until.isoformat()}
                self._say({"text": f"Waiting for {list_first(names, _SHOWN)} {times}.", **known})

    def _say(self, waiting: Mapping[str, Any]) -> None:
        """Record whom the run waits for, also as events of the requests that it serves; {}: for no client."""
        text = str(waiting.get("text", ""))
        if text == self._said:
            return
        self.writer.set_facts({WAITING: waiting})
        self._said = text
        for request_id in self._served if text else ():
            self.writer.note(request_id, "waiting", {"text": text})

    def exchange_both(self, both: JointMessages) -> tuple[Exchange, Exchange]:
        """Do two exchanges in one; return that of the work, and that of the measurement."""
        return both.separate(self.exchange(both.messages))

    def peak_memory(self, done: Exchange) -> PeakMemory:
        """Return the most memory of any client in an exchange, and of this process in the step so far."""
        return PeakMemory.of(done.client_memory.values(), self.memory.peak())

    def notify(self, number: int, clients: Iterable[str]) -> None:
        """Send what is forgotten after round `number` to those that are online; a forgotten one gets no later message.

        What does not arrive is in the server's exclusions all the same.
        """
        notices = self.fedavg.plan.messages(NOTICE, number, self.online_among(clients))
        for client, failure in self.exchange(notices).failures.items():
            _log.warning("Client %s was not told what is forgotten: %s", client, failure)
