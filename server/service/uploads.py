"""SubmitSamples: a deletion request whose list of samples is too long for one message and comes in parts.

What is certain before the list is there is judged by the first part; ids are counted against the caller's quota as
they come.
"""

import asyncio
from collections.abc import Callable

from server.ledger import LimitExceeded, NewRequest
from server.service import access
from server.service import deletion_pb2 as pb
from server.service.call_checks import Exchange
from server.service.convert import from_message, to_message
from server.service.deletion_service import DeletionService
from server.service.limits import Rates
from unlearning.errors import InvalidRequest
from unlearning.requests import MAX_SAMPLE_IDS, Granularity, Target

# For a whole list, also where each part comes in time.
TIMEOUT_S = 300.0
MAX_BYTES = 64 * 1024 * 1024


class Uploads:
    """The call SubmitSamples."""

    def __init__(self, service: DeletionService, rates: Rates, monotonic: Callable[[], float]) -> None:
        self._service = service
        self._rates = rates
        self._monotonic = monotonic

    async def serve(self, exchange: Exchange) -> None:
        """Take the parts, admit the request and answer once it is durable."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                asked = await self._receive(exchange)
        except TimeoutError:
            raise LimitExceeded(
                f"The list of samples did not come within {TIMEOUT_S:g} s. Split it into several requests."
            ) from None

        def submit() -> pb.DeletionRequest:
            filed = self._service.submit(exchange.caller, from_message(NewRequest, asked))
            return to_message(pb.DeletionRequest, filed)

        await exchange.write(await exchange.run(submit))

    async def _receive(self, exchange: Exchange) -> pb.SubmitRequestRequest:
        first = await exchange.read(pb.SubmitSamplesRequest.FromString)
        if first.WhichOneof("part") != "request":
            raise InvalidRequest("The first part of a list of samples must be its request.")
        target = from_message(Target, first.request.target)
        if target.granularity is not Granularity.SAMPLE:
            raise InvalidRequest(
                f"Only a list of samples comes in parts, got a {target.granularity} deletion."
            )
        access.check_may_file(exchange.caller, target)
        sample_ids: list[str] = []
        size_bytes = 0
        part: pb.SubmitSamplesRequest | None = first
        more = list(first.request.target.sample_ids)
        while part is not None:
            sample_ids += more
            size_bytes += part.ByteSize()
            self._check(exchange, len(more), len(sample_ids), size_bytes)
            part = await exchange.read_next(pb.SubmitSamplesRequest.FromString)
            more = [] if part is None else list(part.more.sample_ids)
        del first.request.target.sample_ids[:]
        first.request.target.sample_ids.extend(sample_ids)
        return first.request

    def _check(self, exchange: Exchange, num_new: int, num_ids: int, size_bytes: int) -> None:
        if num_ids > MAX_SAMPLE_IDS or size_bytes > MAX_BYTES:
            raise LimitExceeded(
                f"The list has more than {MAX_SAMPLE_IDS:,} sample ids or {MAX_BYTES:,} bytes. "
                "Split it into several requests."
            )
        self._rates.take_samples(exchange.caller, num_new, self._monotonic())
