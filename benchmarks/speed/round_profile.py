"""Where the time of a training round goes, over sessions or messages, with a few SuperNodes and with many.

    python -m benchmarks.speed.round_profile --clients 3 --clients 30 --output docs/results/round-profile

Real processes on this machine, and the live loop as it runs on any deployment: ledger and checkpoints on disk, the
score on the server's test set in every round. A clock in both apps (`benchmarks/speed/profiled_app.py`) says which
part the time is spent in; with each part stands the thread's processor time, which what else runs here does not change.
"""

import json
import os
import platform
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.deployment import LocalDeployment
from benchmarks.speed.rounds import write_app
from benchmarks.tables import table, write

app = typer.Typer(add_completion=False)
LIMIT_S = 900.0
WARM_UP = 3
"""So many rounds do not count: libraries are imported, data is loaded, sessions are opened."""
ROUNDS = {"sessions": 43, "messages": 9}
WAITING, LOOP = "waiting for answers", "the live loop itself"
OVERHEAD = "neither arithmetic, nor a durable write, nor the exchange"
WAY = (
    "until its process exists: the SuperNode looks every 3 s, its SuperExec at its own interval",
    "until the handler has it: it imports, and fetches message and app",
    "the handler's work",
    "until the round is over: the SuperNode looks every 0.5 s, the server asks; the other clients",
)
_EXCHANGE = ("composing messages", "sending", WAITING, "reading answers")


@app.command()
def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, without suffix.")],
    clients: Annotated[list[int], typer.Option(help="SuperNodes; once for each federation.")] = [3, 30],  # noqa: B006 - typer reads the default from here
    over: Annotated[list[str], typer.Option(help="sessions, messages or both.")] = ["sessions"],  # noqa: B006 - as above
) -> None:
    """Profile rounds and print where their time goes."""
    found: dict[str, Any] = {"load": os.getloadavg()}
    lines = ["# Where a round's time goes", ""]
    for count in clients:
        for transport in over:
            one = found[f"{count} SuperNodes over {transport}"] = _profile(count, transport)
            lines += _lines(count, transport, one)
    lines.append(
        f"Logistic regression on digits; {os.cpu_count()} cores, {platform.machine()}, load average "
        f"{found['load'][0]:.1f} when it began. Means of a round, the first {WARM_UP} left out. *Processor* is that "
        "of the ServerApp's own thread."
    )
    write(output, lines, found)


def _profile(count: int, transport: str) -> dict[str, Any]:
    """Return what server and clients wrote down of their rounds."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sessions = transport == "sessions"
        with LocalDeployment(
            directory / "federation",
            num_clients=count,
            app_dir=write_app(directory / "app", "profiled_app", clientapp="profiled_app"),
            run_config={
                "dataset": "digits",
                "model": "logistic",
                "num-clients": count,
                "rounds": ROUNDS[transport],
                "wait-timeout-s": LIMIT_S,
                "round-timeout-s": LIMIT_S,
                "state-dir": str(directory / "state"),
                **({"transport": "session"} if sessions else {}),
            },
            with_sessions=sessions,
            environment={"PROFILE_DIR": name},
        ) as federation:
            status = federation.wait_until_finished(federation.submit_run(), LIMIT_S)
            if not (directory / "server.json").exists():
                print(status, federation.log_tails())
                raise typer.Exit(1)
        steps = json.loads((directory / "server.json").read_text(encoding="utf-8"))[WARM_UP:]
        ours = [json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("client-*.json")]
    return _summary(steps, ours)


def _summary(steps: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means of a round: of the server's parts, of the clients', and of a Flower message's way."""
    return {
        "rounds": len(steps),
        "round": {kind: statistics.mean(step[kind] for step in steps) for kind in ("wall", "processor")},
        "server": _means([step["parts"] for step in steps], len(steps)),
        "client": _means([one["parts"] for one in clients], sum(len(one["messages"]) for one in clients)),
        "way": _way(steps, clients),
    }


def _means(parts: Iterable[Mapping[str, Sequence[float]]], number: int) -> dict[str, list[float]]:
    """Return (seconds, processor seconds, times) of each part, over a number of rounds, the longest first."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for one in parts:
        for name, values in one.items():
            sums[name] = [before + more for before, more in zip(sums[name], values, strict=True)]
    means = {name: [round(value / number, 6) for value in values] for name, values in sums.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1][0]))


def _way(steps: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the seconds of a message's way: until it is handed over, its process, its work, and back."""
    rounds = [tuple(next(iter(step["messages"].values()))) for step in steps if step["messages"]]
    ways = [
        (one["began"] - sent, began - one["began"], ended - began, done - ended)
        for one in clients
        for began, ended in one["messages"]
        for sent, done in rounds
        if sent <= began and ended <= done
    ]
    return [round(statistics.mean(values), 6) for values in zip(*ways, strict=True)]


def _lines(count: int, transport: str, found: Mapping[str, Any]) -> list[str]:
    """Return the tables of one federation."""
    total, parts = found["round"]["wall"], found["server"]
    # Over messages an answer is waited for where it is read; a session says which of both it is.
    waited = {"reading answers": "waiting for answers, and reading them"} if transport == "messages" else {}
    rows = [
        [
            waited.get(name, name),
            f"{1e3 * wall:.1f}",
            f"{100 * wall / total:.0f} %",
            f"{1e3 * busy:.1f}",
            f"{calls:.0f}",
        ]
        for name, (wall, busy, calls) in parts.items()
    ]
    left = [
        values
        for name, values in parts.items()
        if not name.startswith(("arithmetic", "durable")) and name not in _EXCHANGE
    ]
    wall, busy = (sum(one[kind] for one in left) for kind in (0, 1))
    rows.append(
        [f"**{OVERHEAD}**", f"{1e3 * wall:.1f}", f"{100 * wall / total:.0f} %", f"{1e3 * busy:.1f}", ""]
    )
    own = sum(busy for _, busy, _ in parts.values())
    client_rows = [
        [name, f"{1e3 * wall:.1f}", f"{1e3 * busy:.1f}"] for name, (wall, busy, _) in found["client"].items()
    ]
    lines = [
        f"## {count} SuperNodes over {transport}: {1e3 * total:.0f} ms a round",
        "",
        *table(["the server, a round", "ms", "share", "processor ms", "times"], rows),
        "",
        f"The ServerApp's other threads (gRPC, fetching answers) took {1e3 * (found['round']['processor'] - own):.1f} "
        f"ms beside. Means of {found['rounds']} rounds.",
        "",
        *table(["a client, a round", "ms", "processor ms"], client_rows),
        "",
    ]
    if transport == "messages":
        ways = [[name, f"{value:.2f}"] for name, value in zip(WAY, found["way"], strict=True)]
        lines += [*table(["a message's way", "s, mean"], ways), ""]
    return lines


if __name__ == "__main__":
    app()
