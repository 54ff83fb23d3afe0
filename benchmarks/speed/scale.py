"""What a round costs by the model's size, beside training: processor time and memory, at the server and at a site.

    python -m benchmarks.speed.scale --output docs/results/scale
    python -m benchmarks.speed.scale --output docs/results/scale-gpu --cell 11000000x3 --cell 100000000x3
    python -m benchmarks.speed.scale --output docs/results/scale --cell 11000000x3xbfloat16 --cell 100000000x10

A process for the server and one for each site, with the program's own two halves of a session between them: composing,
streams, checks, mean and checkpoint at the server, the whole handler at a site. There is no SuperLink, which carries
one invitation to a site and nothing of a round, no ledger, and no test set. The model is a perceptron on digits.

All that is not training is set beside a *raw copy*: the processor seconds that the same bytes take over a bare loopback
socket to another process and back, both ends together. *gRPC alone* is one end of a stream that carries them and does
nothing else: no session takes less for exact numbers. A run that was stopped goes on with what its JSON lacks.
"""

import json
import math
import os
import platform
import queue
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

import client.handlers
from benchmarks.local_layout import free_ports
from benchmarks.speed.large_data import Peak
from benchmarks.tables import table, write
from client.app import clients_in_process
from client.last_answer import LastAnswer
from client.site_work import SiteLoader
from server.federation.checkpoints import CheckpointStore
from server.federation.state import FederationState
from strategies import built_in
from strategies.exchange import exchange
from strategies.fedavg import FedAvg
from strategies.in_process_grid import InProcessGrid
from strategies.messages import SESSION, TRAIN, model_record
from strategies.sessions.endpoint import Endpoint, attend, open_channel, serve
from strategies.sessions.framing import CHUNK_BYTES
from strategies.sessions.session_grid import SessionGrid
from unlearning.runtime.spool import make_spool
from unlearning.training import initial_parameters

WARM_UP, ROUNDS, COPIES = 2, 5, 5
CELLS = [f"{size}x{clients}" for size in (100_000, 1_000_000, 11_000_000) for clients in (3, 10, 30)]
HEADINGS = (
    *("parameters", "clients", "wire-dtype", "s per round", "training, s per client"),
    *("raw copy, s per client", "gRPC alone, × raw copy"),
    *("server, s per client", "of it exchange", "mean and checks", "checkpoint", "× raw copy"),
    *("site, s", "of it keeping the answer", "× raw copy", "MB on the wire per client"),
    *("server, MB more", "2.5 models + 64 MB per stream", "site, MB more", "3 models + 64 MB"),
    "load average",
)
MB = 1e6
_PARAMETERS = "SCALE_PARAMETERS"
_FRAME = bytes(CHUNK_BYTES)

Configuration = Mapping[str, Any]


def perceptron(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return two equally wide hidden layers that have nearly as many parameters as the environment says."""
    inputs, wanted = math.prod(input_shape), int(os.environ[_PARAMETERS])
    half = (inputs + num_classes + 2) / 2
    width = round(math.sqrt(half * half + wanted) - half)
    hidden = (nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, num_classes))


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    cell: Annotated[
        list[str], typer.Option(help="PARAMETERSxCLIENTS, or with xWIRE-DTYPE, once for each.")
    ] = CELLS,
) -> None:
    """Measure each cell that is not there yet, and write the page after each."""
    # One thread per process: training is timed in the thread that calls it; what others do would count beside it.
    os.environ["OMP_NUM_THREADS"] = "1"
    kept = output.with_name(output.name + ".json")
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    found.pop("provenance", None)
    if found.setdefault("machine", machine()) != machine():
        raise typer.BadParameter(
            f"{kept} has figures of another machine ({found['machine']}). Write to another page."
        )
    for name in [name for name in cell if name not in found]:
        # In a process of its own: what an earlier cell gave back, the process may still hold.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            found[name] = fresh.submit(measure, *_parts_of(name)).result()
        write_page(output, found)
    write_page(output, found)


def machine() -> str:
    """Return what this machine computes with."""
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"
    return f"{os.cpu_count()} cores, {platform.machine()}, {accelerator}"


def _parts_of(cell: str) -> tuple[int, int, str]:
    parameters, clients, *wire_dtype = cell.split("x")
    return int(parameters), int(clients), (*wire_dtype, "exact")[0]


def settings_of(parameters: int, clients: int, **others: str) -> dict[str, Any]:
    """Return the run configuration of a federation with a model of about `parameters`, for this process as well."""
    os.environ[_PARAMETERS] = str(parameters)
    return {
        "dataset": "digits",
        "model": "benchmarks.speed.scale:perceptron",
        "num-clients": clients,
        "transport": "session",
        "session-address": f"127.0.0.1:{free_ports(1)[0]}",
        **others,
    }


def measure(parameters: int, clients: int, wire_dtype: str = "exact") -> dict[str, Any]:
    """Return the medians over the rounds of a federation of `clients` with a model of about `parameters`."""
    load, raw = os.getloadavg()[0], raw_copy_s(4 * parameters)
    config = settings_of(parameters, clients, **{"wire-dtype": wire_dtype})
    with TemporaryDirectory() as name, Peak() as peak:
        with site_processes(Path(name), clients, config) as (grid, pipes):
            rounds = _rounds(Path(name), grid, config)
        sites = [pipe.recv() for pipe in pipes]
    trained = median(chain(*(one["training"][WARM_UP:] for one in sites)))
    busy = median(after - before for one in sites for before, after in pairwise(one["busy"][WARM_UP:]))
    return {
        **{part: median(one[part] for one in rounds) for part in rounds[0]},
        "raw": raw,
        "stream": stream_s(4 * parameters),
        "training": trained,
        "site": busy - trained,
        "keeping": median(chain(*(one["keeping"][WARM_UP:] for one in sites))),
        "server_bytes": peak.own,
        "site_bytes": max(one["memory"] for one in sites),
        "load": load,
    }


def _rounds(directory: Path, grid: InProcessGrid, config: Configuration) -> list[dict[str, float]]:
    """Return the seconds of each round that counts: of the wall, and of this process by part."""
    found = []
    with server(directory, grid, config) as (fedavg, sessions, checkpoints):
        state = first_state(fedavg)
        for number in range(1, WARM_UP + ROUNDS + 1):
            one, state = train_round(fedavg, sessions, checkpoints, replace(state, round=number))
            found.append(one)
    return found[WARM_UP:]


@contextmanager
def server(
    directory: Path, grid: InProcessGrid, config: Configuration
) -> Iterator[tuple[FedAvg, SessionGrid, CheckpointStore]]:
    """Open the server's half of the sessions; yields what a round needs."""
    settings = built_in.SOURCE.read(config)
    fedavg = FedAvg(built_in.SOURCE.task(settings), settings.run)
    endpoint = Endpoint.from_settings(settings.run)
    assert endpoint is not None, "the address is given"
    sessions = SessionGrid(
        grid,
        endpoint,
        always=True,
        spool=make_spool(directory / "arriving"),
        wire_dtype=settings.run.rounded_to,
    )
    checkpoints = CheckpointStore(directory / "checkpoints")
    with sessions.session():
        yield fedavg, sessions, checkpoints
        sessions.close(ending_s=1.0)  # no answer to an invitation comes back through the pipes


def first_state(fedavg: FedAvg) -> FederationState:
    """Return the state before the first round."""
    return FederationState(parameters=initial_parameters(fedavg.task, fedavg.settings.seed))


def train_round(
    fedavg: FedAvg, grid: SessionGrid, checkpoints: CheckpointStore, state: FederationState
) -> tuple[dict[str, float], FederationState]:
    """Carry out a round as the live loop does, without ledger and test set; return its seconds and what came of it."""
    marks, began = [time.process_time()], time.perf_counter()
    before = grid.bytes_sent + grid.bytes_received
    messages = fedavg.train_messages(state.round, model_record(state.parameters), grid)
    done = exchange(grid, messages, timeout_s=3600.0)
    marks.append(time.process_time())
    outcome = fedavg.aggregate(state.round, done.messages.values())
    marks.append(time.process_time())
    assert outcome.model is not None, done.failures
    assert len(outcome.participants) == fedavg.settings.num_clients, outcome.refused
    state = replace(state, parameters=outcome.model)
    checkpoints.save(state, token=1)
    marks.append(time.process_time())
    seconds = [after - before for before, after in pairwise(marks)]
    parts = dict(zip(("exchange", "mean", "checkpoint"), seconds, strict=True))
    wire = (grid.bytes_sent + grid.bytes_received - before) / len(messages)
    return {"round": time.perf_counter() - began, "server": sum(seconds), "wire": wire, **parts}, state


class _Grid(InProcessGrid):
    """Invites each node's process through a pipe, and answers who it is in its place."""

    pipes: Mapping[int, Connection]

    def _carry(self, message_id: str, message: Message) -> None:
        if message.metadata.message_type != SESSION:
            super()._carry(message_id, message)
            return
        self.pipes[message.metadata.dst_node_id].send_bytes(message_to_proto(message).SerializeToString())


@contextmanager
def site_processes(
    directory: Path, clients: int, config: Configuration
) -> Iterator[tuple[_Grid, Sequence[Connection]]]:
    """Start a process for each site; yields the grid that reaches them, and where each reports at its end."""
    spawn = get_context("spawn")
    ours, theirs = zip(*(spawn.Pipe() for _ in range(clients)), strict=True)
    nodes = [
        {"partition-id": number, "num-partitions": clients, "state-dir": str(directory / f"site-{number}")}
        for number in range(clients)
    ]
    processes = [
        spawn.Process(target=_site, args=(pipe, node, config), daemon=True)
        for pipe, node in zip(theirs, nodes, strict=True)
    ]
    for process in processes:
        process.start()
    for pipe in ours:
        pipe.recv()  # its libraries are imported
    grid = _Grid(clients_in_process(), nodes, config)
    grid.pipes = dict(zip(grid.contexts, ours, strict=True))
    yield grid, ours
    for process in processes:
        process.join()


def _site(pipe: Connection, node: Configuration, config: Configuration) -> None:
    """Attend one session; report processor seconds at each message, those of training and keeping, and the memory."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    context = Context(
        run_id=1, node_id=1, node_config=dict(node), state=RecordDict(), run_config=dict(config)
    )
    found: dict[str, Any] = {"training": [], "keeping": [], "busy": []}
    handlers, own = client.handlers.IN_SESSIONS, vars(client.handlers)
    handlers[TRAIN] = _timed(handlers[TRAIN], [], found["busy"])
    own["train_prepared"] = _timed(own["train_prepared"], found["training"], [])
    LastAnswer.keep = _timed(LastAnswer.keep, found["keeping"], [])  # type: ignore[method-assign]  # for the clock
    pipe.send("ready")
    with Peak() as peak:
        invitation = message_from_proto(ProtoMessage.FromString(pipe.recv_bytes()))
        client.handlers.handle_session(invitation, context, SiteLoader(built_in.SOURCE, built_in.load_site))
    pipe.send({**found, "busy": [*found["busy"], time.process_time()], "memory": peak.own})


def _timed(call: Callable[..., Any], seconds: list[float], begins: list[float]) -> Callable[..., Any]:
    """Return the call with a clock: seconds of this thread's processor, and the process's when it began."""

    def timed(*arguments: Any, **named: Any) -> Any:
        begins.append(time.process_time())
        began = time.thread_time()
        try:
            return call(*arguments, **named)
        finally:
            seconds.append(time.thread_time() - began)

    return timed


def raw_copy_s(num_bytes: int) -> float:
    """Return the median processor seconds of both ends, of `COPIES`, for so many bytes over loopback and back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = get_context("spawn").Process(target=_echo, args=(server.getsockname()[1], num_bytes))
        echo.start()
        content, taken = bytearray(num_bytes), []
        connection, _ = server.accept()
        with connection:
            for _ in range(COPIES):
                began = time.process_time()
                connection.sendall(content)
                _receive(connection, memoryview(content))
                taken.append(time.process_time() - began)
            with connection.makefile() as rest:
                theirs = json.load(rest)
        echo.join()
    return median(map(sum, zip(taken, theirs, strict=True)))


def _echo(port: int, num_bytes: int) -> None:
    content, taken = bytearray(num_bytes), []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(COPIES):
            began = time.process_time()
            _receive(connection, memoryview(content))
            connection.sendall(content)
            taken.append(time.process_time() - began)
        connection.sendall(json.dumps(taken).encode())


def stream_s(num_bytes: int) -> float:
    """Return the median processor seconds of one end for so many bytes over a bare gRPC stream and back."""
    address, count = f"127.0.0.1:{free_ports(1)[0]}", math.ceil(num_bytes / CHUNK_BYTES)
    ours, theirs = get_context("spawn").Pipe()
    echo = get_context("spawn").Process(target=_stream_back, args=(address, count, theirs), daemon=True)
    echo.start()
    ours.recv()
    taken: list[float] = []
    turns: queue.SimpleQueue[int] = queue.SimpleQueue()
    with open_channel(address, None) as channel:
        incoming = attend(channel)(_FRAME for _ in iter(turns.get, 0) for _ in range(count))
        for turn in range(1, COPIES + 1):
            began = time.process_time()
            turns.put(turn)
            for _ in range(count):
                next(incoming)
            taken.append(time.process_time() - began)
        turns.put(0)
        incoming.cancel()
    ours.send("done")
    echo.join()
    return median(taken)


def _stream_back(address: str, count: int, pipe: Connection) -> None:
    def answer(incoming: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        for _ in range(COPIES):
            for _ in range(count):
                next(incoming)
            for _ in range(count):
                yield _FRAME

    server = Endpoint(address=address, bind=address, timeout_s=60.0).listen()
    serve(server, answer)
    server.start()
    pipe.send("ready")
    pipe.recv()
    server.stop(0).wait()


def _receive(connection: socket.socket, into: memoryview) -> None:
    while into:
        into = into[connection.recv_into(into) :]


def write_page(output: Path, found: Mapping[str, Any]) -> None:
    """Write the table of all cells that were measured."""
    names = sorted((name for name in found if name != "machine"), key=_parts_of)
    cells = [(_parts_of(name), found[name]) for name in names]
    least = min(one["server_bytes"] for _, one in cells if one["server_bytes"])
    smallest = {clients: one for (_, clients, _), one in reversed(cells)}
    rows = [_row(*cell, one, smallest[cell[1]]) for cell, one in cells]
    lines = ["# A round by the model's size", "", *table(HEADINGS, rows), ""]
    lines.append(
        f"{found['machine']}; shared with other programs where the load average says so. "
        f"What is not in the table was not run. Medians of {ROUNDS} rounds and {COPIES} raw copies. Seconds are of "
        "processors, of a raw copy both ends'; those of a round are of the wall's clock, which other programs make "
        "longer. Memory is a process's own at most, without pages of files, beyond what it has with the smallest "
        f"model: {least / MB:.0f} MB and more, PyTorch's nearly all; –: it is the smallest, or was not measured. "
        "Beside it is what it may be; of the three models at a site two are PyTorch's, the parameters and "
        "their gradients."
    )
    write(output, lines, found)


def _row(
    parameters: int, clients: int, wire_dtype: str, one: Configuration, smallest: Configuration
) -> list[object]:
    model = 4 * parameters / MB
    more = [(one[kind] or 0) / MB - smallest[kind] / MB for kind in ("server_bytes", "site_bytes")]
    memory = [(more[0], 2.5 * model + 64 * clients), (more[1], 3 * model + 64)]
    server = [one[part] / clients for part in ("server", "exchange", "mean", "checkpoint")]
    return [
        *(f"{parameters:,}", clients, wire_dtype),
        *(f"{one['round']:.2f}", f"{one['training']:.3f}", f"{one['raw']:.4f}"),
        f"{one['stream'] / one['raw']:.1f}" if "stream" in one else "–",
        *(*(f"{seconds:.3f}" for seconds in server), f"{server[0] / one['raw']:.1f}"),
        *(f"{one['site']:.3f}", f"{one['keeping']:.3f}", f"{one['site'] / one['raw']:.1f}"),
        f"{one['wire'] / MB:.1f}" if "wire" in one else "–",
        *(
            f"{figure:,.0f}" if one is not smallest and figure > 0 else "–"
            for pair in memory
            for figure in pair
        ),
        f"{one['load']:.0f}",
    ]


if __name__ == "__main__":
    typer.run(main)
