"""The real ClientApp, but that it waits at a stage of secure aggregation until it is killed.

The stage is named in `wait-at` of the client's directory. What the client keeps of the stage is durable by then, and
its answer has not left; `waits` says that it is there. See `test_secure_aggregation_kills`.
"""

from pathlib import Path
from threading import Event
from typing import Any

from flwr.app import Context, RecordDict

from client import secure_rounds
from client.app import app as honest
from strategies.messages import Json
from unlearning.secure_aggregation.client_round import ClientRound

app = honest  # an assignment, for which Flower looks

_kept = secure_rounds._kept


def _kept_and_waited(context: Context, state: ClientRound, said: Json, *also: Any) -> RecordDict:
    found = _kept(context, state, said, *also)
    wait_at = Path(str(context.node_config["state-dir"])).parent / "wait-at"
    if wait_at.exists() and wait_at.read_text() == state.stage:
        wait_at.rename(wait_at.with_name("waits"))
        Event().wait()
    return found


secure_rounds._kept = _kept_and_waited
