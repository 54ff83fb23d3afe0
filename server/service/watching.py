"""WatchRequest: a request's events and the federation's rounds as they happen.

A watcher holds no thread while it waits. All of them share one short question to the ledger, whether there is anything
new, and read only then.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from server.ledger import Event, Ledger, RoundRecord
from server.service import deletion_pb2 as pb
from server.service.access import figures_of
from server.service.call_checks import Exchange
from server.service.convert import to_message
from server.service.deletion_service import DeletionService
from unlearning.requests import DeletionRequest

POLL_INTERVAL_S = 0.2


class NewestNumbers:
    """The newest numbers of the ledger, read once in each interval for all watchers together."""

    def __init__(self) -> None:
        self._asked_at = float("-inf")
        self._answer: asyncio.Future[tuple[int, int]] | None = None

    async def newest(self, ask: Callable[[], Awaitable[tuple[int, int]]]) -> tuple[int, int]:
        """Return the numbers of the newest event and round, not older than the interval."""
        now = asyncio.get_running_loop().time()
        if self._answer is None or (self._answer.done() and now - self._asked_at >= POLL_INTERVAL_S):
            self._asked_at = now
            self._answer = asyncio.ensure_future(ask())
        return await asyncio.shield(self._answer)


@dataclass(slots=True)
class _WatchPosition:
    """The place up to which one watcher has been sent everything; what comes next is read from the ledger."""

    ledger: Ledger
    current: DeletionRequest
    after_event: int
    after_round: int

    def begin(self) -> None:
        """Begin with the rounds after the request was filed, unless the watcher knows better."""
        if not self.after_round:
            first = self.ledger.events.page(self.current.id, limit=1)
            self.after_round = int(first[0].detail.get("last_round_sequence", 0)) if first else 0

    def read(self) -> list[Event | RoundRecord]:
        """Return what has happened since the last time, in the order of its times."""
        events = list(self.ledger.events.all(self.current.id, after=self.after_event))
        if events and self.current.is_open:
            # The state is read before the last of what led to it: when it is final, all of that is there to be read.
            self.current = self.ledger.requests.get(self.current.id)
            events += self.ledger.events.all(self.current.id, after=events[-1].sequence)
        rounds = [
            record
            for record in self.ledger.all_rounds(after=self.after_round)
            if self.current.is_open or record.at <= self.current.updated_at
        ]
        self.after_event = events[-1].sequence if events else self.after_event
        self.after_round = rounds[-1].sequence if rounds else self.after_round
        happened: list[Event | RoundRecord] = [*rounds, *events]
        return sorted(happened, key=lambda item: item.at)


class Watching:
    """The call WatchRequest."""

    def __init__(self, ledger: Ledger, service: DeletionService) -> None:
        self._ledger = ledger
        self._service = service
        # An operator does not wait behind a query in the queue of the others' threads.
        self._newest_numbers = {True: NewestNumbers(), False: NewestNumbers()}

    async def serve(self, exchange: Exchange) -> None:
        """Send the request, its events and the federation's rounds as they happen, and the request again.

        Ends when the request has ended or the caller hangs up.
        """
        asked = await exchange.read(pb.WatchRequestRequest.FromString)
        started = await exchange.run(lambda: self._service.get(exchange.caller, asked.request_id))
        await exchange.write(_message(started))
        async for item in self._follow(
            exchange, _WatchPosition(self._ledger, started, asked.after_event, asked.after_round)
        ):
            if isinstance(item, RoundRecord) and exchange.caller.is_client:
                item = figures_of(item, frozenset({started.id}))
            await exchange.write(_message(item))

    async def _follow(
        self, exchange: Exchange, position: _WatchPosition
    ) -> AsyncIterator[DeletionRequest | Event | RoundRecord]:
        await exchange.run(position.begin)
        seen: tuple[int, int] | None = None
        while True:
            # Read before the rest, so that what comes in between is read once more and not missed.
            newest = await self._newest(exchange)
            if newest != seen:
                for item in await exchange.run(position.read):
                    yield item
                if not position.current.is_open:
                    yield position.current
                    return
                seen = newest
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _newest(self, exchange: Exchange) -> tuple[int, int]:
        numbers = self._newest_numbers[exchange.caller.is_operator]
        return await numbers.newest(lambda: exchange.run(self._ledger.events.newest))


def _message(item: DeletionRequest | Event | RoundRecord) -> pb.WatchRequestResponse:
    if isinstance(item, DeletionRequest):
        return pb.WatchRequestResponse(request=to_message(pb.DeletionRequest, item))
    if isinstance(item, Event):
        return pb.WatchRequestResponse(event=to_message(pb.Event, item))
    return pb.WatchRequestResponse(round=to_message(pb.Round, item))
