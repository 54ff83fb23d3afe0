"""The project's own two apps with a clock in them: where the time of a round goes, at the server and at a client.

`benchmarks/speed/round_profile.py` starts them. Each part of a round is a name for some functions; while one of them
runs, its time is that part's, but what another part takes inside it. Server and clients write what they found as
JSON into the directory that `PROFILE_DIR` names.
"""

import atexit
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import psutil

import client.answering
import client.app
import client.handlers
import strategies.sessions.client_session
import strategies.sessions.session_grid
from client.last_answer import LastAnswer
from server.app import make_server_app
from server.federation.checkpoints import CheckpointStore
from server.federation.clients import Clients
from server.federation.context import FederationContext
from server.federation.observing import ServerTestSet
from server.ledger.database import Database
from server.live_loop import LiveLoop
from strategies import built_in
from strategies.fedavg import FedAvg
from strategies.roster import Roster
from strategies.sessions.session_grid import SessionGrid

DIRECTORY = Path(os.environ["PROFILE_DIR"])


class Clock:
    """Seconds by part of a round: of the wall, of this thread's processor, and how often it was entered."""

    def __init__(self) -> None:
        self.parts: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        self._open: list[str] = []
        self._at = (0.0, 0.0)
        self._thread = 0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time within the context as this part's; of one thread, that of the first part of all."""
        if not self._open:
            self._thread = threading.get_ident()
        elif threading.get_ident() != self._thread:
            yield
            return
        self._charge()
        self._open.append(name)
        self.parts[name][2] += 1
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        now = time.perf_counter(), time.thread_time()
        if self._open:
            one = self.parts[self._open[-1]]
            one[0] += now[0] - self._at[0]
            one[1] += now[1] - self._at[1]
        self._at = now

    def within(self, owner: Any, attribute: str, name: str) -> None:
        """Count the calls of a function or method as a part; of a context manager, its block too."""
        original: Callable[..., Any] = getattr(owner, attribute)

        @wraps(original)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return original(*arguments, **named)

        @contextmanager
        def timed_block(*arguments: Any, **named: Any) -> Iterator[Any]:
            with self.part(name), original(*arguments, **named) as given:
                yield given

        setattr(owner, attribute, timed_block if owner is Database else timed)


class ServerProfile:
    """The clock of the live loop, read at the end of each of its steps."""

    def __init__(self) -> None:
        clock = self.clock = Clock()
        self.steps: list[dict[str, Any]] = []
        clock.within(Roster, "online", "asking the SuperLink who is online")
        clock.within(Clients, "register", "which clients the ledger knows")
        clock.within(Database, "reading", "reading the ledger")
        clock.within(Database, "writing", "durable: the round's record in the ledger")
        clock.within(CheckpointStore, "save", "durable: the checkpoint")
        clock.within(FederationContext, "ask_round", "composing messages")
        clock.within(SessionGrid, "push_messages", "sending")
        clock.within(SessionGrid, "wait", "waiting for answers")
        clock.within(Clients, "exchange", "reading answers")
        clock.within(FedAvg, "aggregate", "arithmetic: averaging, and the checks before it")
        clock.within(ServerTestSet, "observe", "arithmetic: the score on the server's test set")
        self.messages: dict[str, list[float]] = {}
        step = LiveLoop.step

        def timed_step(loop: LiveLoop, state: Any) -> Any:
            before = {name: list(values) for name, values in clock.parts.items()}
            began, busy = time.perf_counter(), time.process_time()
            with clock.part("the live loop itself"):
                following = step(loop, state)
            if following is not None and following.training_rounds > state.training_rounds:
                parts = {
                    name: [now - then for now, then in zip(values, before.get(name, [0, 0, 0]), strict=True)]
                    for name, values in clock.parts.items()
                }
                seconds = {"wall": time.perf_counter() - began, "processor": time.process_time() - busy}
                self.steps.append({"parts": parts, "messages": self.messages, **seconds})
            self.messages = {}
            return following

        LiveLoop.step = timed_step  # type: ignore[method-assign, assignment]  # the clock stands in the loop's place
        exchange = Clients.exchange

        def timed_exchange(clients: Clients, messages: Any) -> Any:
            began = time.time()
            done = exchange(clients, messages)
            self.messages = {who: [began, time.time()] for who in messages}
            return done

        Clients.exchange = timed_exchange  # type: ignore[method-assign, assignment]  # as above
        atexit.register(self.write)

    def write(self) -> None:
        """Write the rounds down, if there were any."""
        if self.steps:
            (DIRECTORY / "server.json").write_text(json.dumps(self.steps), encoding="utf-8")


class ClientProfile:
    """The clock of one client's process, and when it began and ended each message."""

    def __init__(self) -> None:
        clock = self.clock = Clock()
        self.messages: list[list[float]] = []
        clock.within(client.answering, "open_work", "opening the data")
        clock.within(client.handlers, "train_prepared", "arithmetic: training")
        clock.within(LastAnswer, "keep", "keeping the answer, in case it is lost")
        clock.within(strategies.sessions.client_session, "told_message", "unpacking the message")
        clock.within(strategies.sessions.client_session, "answer_payload", "packing the answer")
        for handlers in (client.handlers.IN_SESSIONS, client.handlers.HANDLERS):
            handlers["train"] = self._timed(handlers["train"])
        atexit.register(self.write)

    def _timed(self, handle: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            began = time.time()
            with self.clock.part("the handler itself"):
                answer = handle(*arguments)
            self.messages.append([began, time.time()])
            return answer

        return timed

    def write(self) -> None:
        """Write what this process did, if it was anything."""
        if self.messages:
            found = {
                "began": psutil.Process().create_time(),
                "messages": self.messages,
                "parts": self.clock.parts,
            }
            (DIRECTORY / f"client-{os.getpid()}.json").write_text(json.dumps(found), encoding="utf-8")


def _app() -> Any:
    """Return the project's ServerApp or ClientApp with the clock, as the program wants that loads this file."""
    if Path(sys.argv[0]).name == "flwr-serverapp":
        ServerProfile()
        return make_server_app(built_in.make_task, built_in.load_test, table=built_in.NO_TABLE)
    ClientProfile()
    return client.app.make_client_app(built_in.make_task, built_in.load_site, table=built_in.NO_TABLE)


app = _app()
