"""The federation's server side: the live loop, the ledger, the deletion service, the command line.

Import from here: `make_server_app` for a task of your own, `server.ledger` (the durable record of requests),
`server.requests.admission` (the only admission for new requests), `server.service` (the deletion service and its
client), `server.cli` (the command).

This package may import `strategies` and `unlearning`, never `client`; import-linter enforces that.
"""

from typing import TYPE_CHECKING, Any

from flower_unlearning_names import refuse_shadows

if TYPE_CHECKING:
    from server.app import make_server_app

__all__ = ["make_server_app"]

refuse_shadows()


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch on first use: the command line does without."""
    if name in __all__:
        from server import app

        return getattr(app, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
