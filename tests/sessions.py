"""What tests of sessions share: a Grid whose session clients run beside the server, and a line that can be cut."""

import contextlib
import math
import socket
import threading
from typing import Any

from flwr.app import Message

from strategies.in_process_grid import InProcessGrid
from strategies.messages import SESSION
from tests.federation import InProcessFederation


class Vanished(BaseException):
    """Raised in a client's work: its machine is gone, and Flower has not noticed."""


class ThreadedGrid(InProcessGrid):
    """An in-process Grid that runs each session message in a thread of its own; others at once, as ever.

    lost_invitations: nodes that never answer a session message, as if they had been killed with it.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lost_invitations: set[int] = set()

    def _carry(self, message_id: str, message: Message) -> None:
        if message.metadata.message_type == SESSION:
            if message.metadata.dst_node_id in self.lost_invitations:
                return
            threading.Thread(target=self._attend, args=(message_id, message), daemon=True).start()
        else:
            super()._carry(message_id, message)

    def _attend(self, message_id: str, message: Message) -> None:
        with contextlib.suppress(Vanished):
            super()._carry(message_id, message)


class SessionFederation(InProcessFederation):
    """A federation in this process whose grid can hold sessions."""

    kind_of_grid = ThreadedGrid


class CuttingProxy:
    """Forwards connections to `target`; the first is cut after `cut_after` bytes from the server or the client."""

    def __init__(self, target: str, *, from_server: float = math.inf, from_client: float = math.inf) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._limits = (from_server, from_client)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_connections = 0
        self.was_cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self.num_connections += 1
            limits = (math.inf, math.inf) if self.was_cut.is_set() else self._limits
            for source, sink, limit in zip((far, near), (near, far), limits, strict=True):
                threading.Thread(target=self._forward, args=(source, sink, limit), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, limit: float) -> None:
        passed = 0
        try:
            while data := source.recv(65536):
                passed += len(data)
                if passed > limit:
                    self.was_cut.set()
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            _shut(end)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
