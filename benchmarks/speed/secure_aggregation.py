"""What secure aggregation costs: rounds over sessions with and without it, and bytes and seconds of each half.

    python -m benchmarks.speed.secure_aggregation --output docs/results/secure-aggregation

Rounds: the live federation, each client a process of its own, over streams of gRPC on loopback; a run without
and a run with it, one after the other. Each half: what clients and the server do in a round, in this process, one after
the other, with messages as they would travel, of which the bytes are counted.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import message_pb2

from benchmarks.local_layout import free_ports
from benchmarks.speed import secure_app
from benchmarks.tables import table, write
from server.ledger import Ledger
from server.state_directory.ledger_address import ledger_url
from strategies.in_process_grid import InProcessGrid
from strategies.messages import SESSION
from strategies.settings.run_config import RunSettings
from unlearning.runtime.json_codec import to_plain
from unlearning.secure_aggregation import client_round
from unlearning.secure_aggregation.client_round import Identity
from unlearning.secure_aggregation.server_round import ServerRound
from unlearning.secure_aggregation.terms import RoundTerms, degree

WARM_UP = 2
WORK = b"work"

app = typer.Typer(add_completion=False)


@app.command()
def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    federation: Annotated[
        list[str], typer.Option(help="CLIENTS:WIDTH; the model has 75 × WIDTH parameters.")
    ] = [  # noqa: B006 - typer reads the default from here
        "3:1333",
        "3:146667",
        "30:1333",
    ],
    rounds: Annotated[int, typer.Option(help="Of each run; the first two do not count.")] = 12,
    virtual: Annotated[list[int], typer.Option(help="Clients without processes.")] = [30, 1000],  # noqa: B006
    length: Annotated[int, typer.Option(help="Of the virtual clients' vector.")] = 100_000,
) -> None:
    """Measure rounds, then many clients in this process."""
    found: dict[str, Any] = {"load": os.getloadavg()[0], "rounds": {}}
    rows = []
    for one in federation:
        count, width = map(int, one.split(":"))
        plain, secure = _rounds(count, width, rounds)
        found["rounds"][one] = {"plain": plain, "secure": secure}
        a, b = (statistics.median(run["seconds"]) for run in (plain, secure))
        size = [statistics.median(run["bytes"]) / count / 1e6 for run in (plain, secure)]
        cells = [count, f"{75 * width / 1e6:.1f}", f"{a:.3f}", f"{b:.3f}", f"{b / a:.2f}", f"{b - a:+.3f}"]
        rows.append([*cells, *(f"{value:.2f}" for value in size), f"{size[1] / size[0]:.2f}"])
    many = found["virtual"] = [_virtual(count, length) for count in virtual]
    write(output, _page(rows, many, found["load"], rounds), found)


def _page(rows: list[list[Any]], many: list[dict[str, Any]], load: float, rounds: int) -> list[str]:
    headings = ("clients", "million parameters", "plain, s", "secure, s", "ratio", "difference, s")
    sizes = ("plain, MB a client", "secure, MB a client", "ratio")
    return [
        "# What secure aggregation costs",
        "",
        "## Rounds over sessions",
        "",
        *table([*headings, *sizes], rows),
        "",
        f"Medians of the exchange with clients in {rounds - WARM_UP} rounds, the plain run first; {os.cpu_count()} "
        f"cores, load average {load:.1f} when it began. Bytes are frames both ways. Clients are processes "
        "of this machine, so what each computes adds up over its cores; on machines of their own it does not.",
        "",
        "## Each half by itself",
        "",
        *table(
            ["", *(f"{one['clients']:,} clients" for one in many)],
            [
                ["neighbours of each", *(one["neighbours"] for one in many)],
                ["plain, MB a client both ways", *(f"{one['plain_bytes'] / 1e6:.2f}" for one in many)],
                ["secure, MB a client both ways", *(f"{one['bytes'] / 1e6:.2f}" for one in many)],
                ["ratio", *(f"{one['bytes'] / one['plain_bytes']:.2f}" for one in many)],
                ["processor seconds of a client, median", *(f"{one['client_s']:.2f}" for one in many)],
                ["processor seconds of the server", *(f"{one['server_s']:.2f}" for one in many)],
            ],
        ),
        "",
        f"A vector of {many[0]['length']:,} numbers; a twentieth of the clients drops out after sharing secrets. Where "
        "each client has a machine of its own, a round takes the server's seconds, one client's and four exchanges "
        "more. A client's work is O(k · d) for k neighbours and d numbers; the lists of all public keys and of all "
        "signatures are O(n).",
    ]


class _GridOfProcesses(InProcessGrid):
    """Runs each client's session in a process of its own; queries at once."""

    def __init__(self, configs: list[dict[str, Any]], config: Mapping[str, Any]) -> None:
        super().__init__(secure_app.app, configs, config)
        self._given = secure_app.WIDTH, configs, config
        self._processes = ProcessPoolExecutor(len(configs), mp_context=get_context("spawn"))

    def _carry(self, message_id: str, message: Message) -> None:
        if message.metadata.message_type == SESSION:
            self._processes.submit(_converse, message_to_proto(message).SerializeToString(), *self._given)
        else:
            super()._carry(message_id, message)

    def close(self) -> None:
        """End the processes."""
        self._processes.shutdown(cancel_futures=True)


def _converse(message: bytes, width: int, configs: list[dict[str, Any]], config: Mapping[str, Any]) -> None:
    """Be a client until its session ends."""
    secure_app.WIDTH = width
    torch.set_num_threads(1)
    InProcessGrid(secure_app.app, configs, config).send_and_receive(
        [message_from_proto(message_pb2.Message.FromString(message))]
    )


def _rounds(count: int, width: int, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return seconds and bytes of the rounds of a plain run and of a secure one."""
    secure_app.WIDTH = width
    found = []
    configs = [{"partition-id": number, "num-partitions": count} for number in range(count)]
    for is_secure in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            settings = {
                "num-clients": count,
                "rounds": rounds,
                "transport": "session",
                "secure-clip-norm": 100.0,
                "wait-timeout-s": 300.0,
                "round-timeout-s": 300.0,
            }
            settings |= {"session-address": f"127.0.0.1:{free_ports(1)[0]}", "state-dir": directory}
            config = RunSettings().with_changes({**settings, "secure-aggregation": is_secure}).to_run_config()
            context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
            with closing(_GridOfProcesses(configs, config)) as grid:
                secure_app.server(grid, context)
            found.append(_read(Path(directory), is_secure))
    return found[0], found[1]


def _read(state: Path, is_secure: bool) -> dict[str, Any]:
    with closing(Ledger.open(ledger_url(state))) as ledger:
        every = [one.metrics for one in ledger.all_rounds() if ("secure" in one.metrics) == is_secure]
    return {
        "seconds": [one["seconds"] for one in every[WARM_UP:]],
        "bytes": [one["bytes_sent"] + one["bytes_received"] for one in every[WARM_UP:]],
    }


def _virtual(count: int, length: int) -> dict[str, Any]:
    """Return bytes and seconds of a round of so many clients; a twentieth drops out after sharing."""
    names = [f"client-{number}" for number in range(count)]
    keys = {name: os.urandom(32) for name in names}
    roster = {
        name: Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
        for name, key in keys.items()
    }
    own = {name: Identity(client=name, key=key, roster=roster) for name, key in keys.items()}
    terms = RoundTerms(
        federation="bench", run=1, sequence=1, purpose="train", length=length, num_clients=count
    )
    states, seconds, sent = {}, dict.fromkeys(names, 0.0), dict.fromkeys(names, 4 * length)  # the model
    advertised, sealed, signatures, unmasking = {}, {}, {}, {}

    def timed(name: str, act: Any, *given: Any, **more: Any) -> Any:
        began = time.thread_time()
        states[name], said = act(*given, **more)
        seconds[name] += time.thread_time() - began
        return said

    for name in names:
        advertised[name] = timed(
            name, client_round.advertise, own[name], terms, answered=0, entropy=os.urandom
        )
    server_s, began = 0.0, time.thread_time()
    server = ServerRound.begin(terms, advertised)
    members = list(server.cohort.members.values())
    listed = _size(members)
    server_s += time.thread_time() - began
    for name in names:
        sealed[name] = timed(name, client_round.share, states[name], own[name], members, os.urandom)
        sent[name] += _size(advertised[name]) + listed + _size(sealed[name])
    server = server.with_shares(sealed)
    gone = set(names[::20])
    masked = {}
    values = np.zeros(length, dtype=np.uint64)
    for name in names:
        if name not in gone:
            shares = server.shares_for(name)
            masked[name] = timed(name, client_round.mask, states[name], own[name], shares, WORK, values)
            sent[name] += _size(shares) + 8 * length
    began = time.thread_time()
    server = server.with_masked(masked)
    server_s += time.thread_time() - began
    for name in server.survivors:
        signatures[name] = timed(name, client_round.confirm, states[name], own[name], server.survivors)
    told = _size(list(server.survivors)) + _size(signatures)
    for name in server.survivors:
        unmasking[name] = timed(name, client_round.unmask, states[name], own[name], signatures)
        sent[name] += told + _size(unmasking[name])
    began = time.thread_time()
    assert not server.sum(unmasking, WORK).any(), "the sum of zeros"
    server_s += time.thread_time() - began
    stayed = [name for name in names if name not in gone]
    return {
        "clients": count,
        "length": length,
        "neighbours": degree(count),
        "dropped": len(gone),
        "plain_bytes": 8 * length,
        "bytes": statistics.mean(sent[name] for name in stayed),
        "client_s": statistics.median(seconds[name] for name in stayed),
        "server_s": server_s,
    }


def _size(value: Any) -> int:
    return len(json.dumps(to_plain(value)))


if __name__ == "__main__":
    app()
