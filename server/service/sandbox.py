"""A second service for tokens of the sandbox: the same answers, over a ledger of its own that no live loop reads."""

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from server.ledger import APPROVAL, FEDERATION, ClientRecord, Ledger
from server.service.deletion_service import DeletionService, utc_now
from server.service.grpc_server import Core


@dataclass(slots=True)
class Sandbox:
    """The service of the sandbox, made at its first call and erased by `stop`.

    It knows the clients and the settings of the federation, and none of its requests.
    """

    live: Core
    _made: Core | None = field(default=None, init=False)
    _folder: TemporaryDirectory[str] | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def core(self) -> Core:
        """Return the service, with the federation's clients and settings as they are now."""
        with self._lock:
            made = self._made = self._made or self._make()
            if _known(made.ledger) != _known(self.live.ledger):
                clients, facts = _known(self.live.ledger)
                fence = made.ledger.acquire_fence("sandbox", now=utc_now())
                writer = made.ledger.live(fence, utc_now)
                writer.register_clients(clients)
                writer.set_facts(facts)
        return made

    def stop(self) -> None:
        """Erase the requests of the sandbox."""
        if self._made is not None:
            self._made.ledger.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _make(self) -> Core:
        self._folder = TemporaryDirectory(prefix="flower-unlearning-sandbox-")
        folder, live = Path(self._folder.name), self.live
        ledger = Ledger.open(f"sqlite:///{folder}/ledger.db", live.ledger.keys)
        service = DeletionService(ledger, folder, limits=live.limits, run_step=live.run_step)
        return replace(live, ledger=ledger, service=service)


def _known(ledger: Ledger) -> tuple[list[ClientRecord], dict[str, Any]]:
    facts = ledger.facts()
    return ledger.clients(), {name: facts[name] for name in (FEDERATION, APPROVAL) if name in facts}
