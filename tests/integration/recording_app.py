"""The real app, but that the server keeps every byte of its sessions' streams, and each client what it has worked out.

In the directory `RECORDING`: `received`, all frames one after the other; `clear/`, what each client's work gave before
masks, as `.npz`: arrays by name, the count and loss, and `addend`, what the client adds to a sum. See
`test_secure_aggregation_recording`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import RecordDict

from client import answering, secure_rounds
from client.app import app as honest_client
from server.app import app as honest_server
from strategies.messages import named_arrays
from strategies.sessions import client_connections

client_app = honest_client  # assignments, for which Flower looks
server_app = honest_server

RECORDING = Path(os.environ.get("TEST_RECORDING", "."))
_parsed, _work, _mask = (
    client_connections.parsed,
    answering.work_through_mods,
    secure_rounds.client_round.mask,
)


def _keep(values: Mapping[str, Any]) -> None:
    directory = RECORDING / "clear"
    directory.mkdir(exist_ok=True)
    np.savez(directory / f"{uuid4()}.npz", **values)


def _parsed_and_kept(frame: bytes) -> Any:
    with (RECORDING / "received").open("ab") as file:
        file.write(frame)
    return _parsed(frame)


def _worked_and_kept(*given: Any) -> RecordDict:
    content = _work(*given)
    metrics = {name: value for one in content.metric_records.values() for name, value in one.items()}
    _keep({**named_arrays(content), **{f"metric {name}": value for name, value in metrics.items()}})
    return content


def _masked_and_kept(state: Any, own: Any, sealed: Any, work: bytes, values: Any) -> Any:
    found = _mask(state, own, sealed, work, values)
    _keep({"addend": values, "masked": found[1], "sequence": state.terms.sequence, "client": own.client})
    return found


client_connections.parsed = _parsed_and_kept
answering.work_through_mods = _worked_and_kept
secure_rounds.client_round.mask = _masked_and_kept
