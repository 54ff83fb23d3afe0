"""`flower-unlearn demo`: the whole story on one machine, told while it happens."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def demo_command(
    simulation: Annotated[
        bool, typer.Option("--simulation", help="Virtual clients in Flower's Ray simulation; under a minute.")
    ] = False,
    clients: Annotated[
        int | None,
        typer.Option(min=2, help="How many clients there are.", show_default="3, for --secure-aggregation 4"),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="The unlearning method.", show_default="puf-special")
    ] = None,
    secure_aggregation: Annotated[
        bool,
        typer.Option("--secure-aggregation", help="The server sees sums over clients only; by puf-regular."),
    ] = False,
    directory: Annotated[
        Path | None,
        typer.Option(help="A new directory for the report and all files.", show_default="runs/demo-TIME"),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep logs, ledger and checkpoints too, not only the report.")
    ] = False,
    keep_running: Annotated[
        bool,
        typer.Option("--keep-running", help="Let it go on, with its console, until Ctrl-C; its files stay."),
    ] = False,
) -> None:
    """Watch a live federation forget a client: starts everything on this machine, and stops it again."""
    console = Console(highlight=False, markup=False, emoji=False)
    with exit_on_signals():
        console.print("A live federation forgets a client  (loading PyTorch …)", style="bold")
        # Imported here because it needs PyTorch, which takes seconds; other commands do not.
        from benchmarks.demo.story import tell

        tell(
            console,
            simulation=simulation,
            num_clients=clients or (4 if secure_aggregation else 3),
            method=method or ("puf-regular" if secure_aggregation else "puf-special"),
            secure_aggregation=secure_aggregation,
            directory=directory,
            keep=keep,
            keep_running=keep_running,
        )


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and a closed terminal into SystemExit(128 + signal), once.

    Whoever ends a program by a signal wants it to stop what it has started; a second signal must not
    interrupt that.
    """

    def end(number: int, _: FrameType | None) -> None:
        for other in _ENDING:
            signal.signal(other, signal.SIG_IGN)
        if number == signal.SIGHUP:  # the terminal is gone: nothing reads, and writing would fail
            sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
