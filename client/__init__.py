"""The client side: a ClientApp that trains, unlearns, measures, and never trains on what it must forget.

Import from here: `make_client_app` for a task and data of your own, `client.app:app` (the ClientApp of the built-in
tasks), `client.memory` (tombstones and the outbox of requests filed at the client's own site). May import `strategies`,
`unlearning` and Flower; not `server`.
"""

from typing import TYPE_CHECKING, Any

from flower_unlearning_names import refuse_shadows

if TYPE_CHECKING:
    from client.app import make_client_app

__all__ = ["make_client_app"]

refuse_shadows()


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch on first use: the command line does not need it."""
    if name in __all__:
        from client import app

        return getattr(app, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
