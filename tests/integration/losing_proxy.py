"""Stands between a SuperNode and its SuperLink and loses what a cut link would: the word that an answer's head came."""

import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Self

import grpc
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse

from tests.waiting import WAIT_S

_PUSH = "/flwr.proto.Fleet/PushMessages"
_LARGE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_AGAIN_S = 0.2

Metadata = tuple[tuple[str, str | bytes], ...]


class LosingProxy(grpc.GenericRpcHandler):
    """Passes every call of the Fleet API on to `target` as bytes, with its metadata.

    Told to lose an answer, it hands the head of the next one of that type to the SuperLink and keeps the reply from
    the SuperNode, as a link does that is cut at that instant, and as gRPC's retries do it hands in the same head
    again, until the server has fetched the first and the SuperLink wants no more of it. The body then never comes.
    """

    def __init__(self, address: str, target: str) -> None:
        self.num_lost = 0
        self._kind = ""
        self._lock = threading.Lock()
        self._target = grpc.insecure_channel(target, options=_LARGE)
        self._server = grpc.server(futures.ThreadPoolExecutor(16), options=_LARGE)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(address)

    def lose(self, message_type: str) -> None:
        """Lose the next answer of this type."""
        with self._lock:
            self._kind = message_type

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.stop(0.5).wait()
        self._target.close()

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Handle a call of any name."""
        method = details.method
        call: Callable[..., bytes] = self._target.unary_unary(method)

        def pass_on(request: bytes, context: grpc.ServicerContext) -> bytes:
            told: Metadata = tuple(item for item in context.invocation_metadata() if item[0] != "user-agent")
            try:
                if method == _PUSH and self._is_to_be_lost(request):
                    return self._lose(call, request, told)
                return call(request, metadata=told, timeout=WAIT_S)
            except grpc.RpcError as exc:
                context.abort(exc.code(), exc.details())
                raise

        return grpc.unary_unary_rpc_method_handler(pass_on)

    def _is_to_be_lost(self, request: bytes) -> bool:
        kind = PushMessagesRequest.FromString(request).messages_list[0].metadata.message_type
        with self._lock:
            if kind != self._kind:
                return False
            self._kind = ""
            return True

    def _lose(self, call: Callable[..., bytes], request: bytes, told: Metadata) -> bytes:
        while True:
            reply = call(request, metadata=told, timeout=WAIT_S)
            if not PushMessagesResponse.FromString(reply).objects_to_push:
                self.num_lost += 1
                return reply
            time.sleep(_AGAIN_S)
