"""The standard health service's Check; its Watch, a stream for everybody without end, is not served."""

from collections.abc import Collection

from grpc_health.v1 import health_pb2

from server.api.call_checks import Exchange
from unlearning.errors import RequestNotFound

SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Health:
    """The health protocol's answers for these services ("" for all together)."""

    def __init__(self, services: Collection[str]) -> None:
        self._services = services
        self.is_serving = True

    async def serve(self, exchange: Exchange) -> None:
        """Answer the call Check."""
        asked = await exchange.read(health_pb2.HealthCheckRequest.FromString)
        if asked.service not in self._services:
            raise RequestNotFound(f"No service {asked.service[:80]!r} is here.")
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if self.is_serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        await exchange.write(health_pb2.HealthCheckResponse(status=status))
