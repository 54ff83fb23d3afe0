"""The command `flower-unlearn plan`: which methods can serve a request now, at what price, and why others cannot."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from server.cli.connection import connection_of
from server.cli.listings import measured_text, size_text
from server.cli.request_commands import targets_of
from server.requests.plan_data import Plan, PlannedMethod
from strategies.command_line import say, show_json, show_table, wants_json
from unlearning.errors import InvalidRequest

_SITE_S, _LOOK_S = 15.0, 0.5
"""How long the answer of a client is waited for that is asked which samples it has, and how often it is looked for.

A run that has just ended cannot be told from one at work: heartbeats are up to 22.5 s apart (`records.HEARTBEAT`)."""


def plan_command(
    ctx: typer.Context,
    client: Annotated[str, typer.Option(help="The client to forget.")] = "",
    samples: Annotated[
        Path | None, typer.Option(help="Only these samples of the client: a file, one id a line.")
    ] = None,
    class_label: Annotated[int | None, typer.Option("--class", help="This class on every client.")] = None,
) -> None:
    """Say which methods can serve a request now, what each would cost, and why the others cannot."""
    targets = targets_of([client] if client else [], samples, class_label)
    if len(targets) != 1:
        raise InvalidRequest("A plan is made for one target.")
    with connection_of(ctx).client() as service:
        found = service.plan(targets[0])
        until = time.monotonic() + _SITE_S
        while is_asked(found) and time.monotonic() < until:
            time.sleep(_LOOK_S)
            found = service.plan(targets[0])
    if wants_json():
        show_json(found)
    else:
        _show(found)


def is_asked(found: Plan) -> bool:
    """Return whether the client may say more of the samples soon."""
    return found.samples is not None and found.samples.is_online and not found.samples.is_answered


def _show(found: Plan) -> None:
    if found.samples is not None:
        say(found.samples.sentence)
        if found.samples.forbids:
            return
    say(
        f"Recommended: {found.recommended}. {found.why}"
        if found.recommended
        else "No method can serve it now."
    )
    if found.ranking:
        say(found.ranking)
    if found.cannot_show:
        say(found.cannot_show)
    rows = [
        (item.method, _traffic(item), _work(item), _past(item), _compared(item), _remark(item))
        for item in found.methods
        if not item.refusal
    ]
    columns = ("method", "unlearning", "computing", "measured here", "compared", "remark")
    show_table(columns, rows, title=f"To forget {found.target}")
    seconds = f", {found.round_seconds:.3g} s" if found.round_seconds is not None else ""
    flops = f", {found.recovery_flops:.3g} FLOPs" if found.recovery_flops else ""
    say(
        f"Then recovery: at most {found.recovery_max_rounds} round(s), each of {size_text(found.recovery_bytes)}"
        f"{flops}{seconds} (the seconds are the median of recent training rounds). Unlearning is counted by the "
        "closed formulas: payload in both directions, and floating-point operations at the clients."
    )
    say(
        "compared: how near the method came to retraining, ± over seeds, in your own runs (`flower-unlearn bench "
        "--app`) or the published comparison that is nearest to this federation, and the places that it can have; a "
        "dash where none is near (docs/explanation-choosing-a-method.md)."
    )
    revealed = [
        (holder.name, holder.membership.text, f"{holder.record.basis}: {holder.record.text}")
        for item in found.methods
        if item.method == found.recommended
        for holder in item.reveals
    ]
    if revealed:
        asked = ("who", "whether a record was deleted", "the record itself")
        show_table(
            asked, revealed, has_long_cells=True, title=f"What a deletion by {found.recommended} reveals"
        )
    refused = [(item.method, item.refusal) for item in found.methods if item.refusal]
    if refused:
        show_table(("method", "why not"), refused, has_long_cells=True)


def _traffic(item: PlannedMethod) -> str:
    if item.bytes is None:
        return "unknown"
    rounds = f"\n= {item.rounds:.2g} round(s)" if item.rounds is not None and item.bytes else ""
    return f"{size_text(item.bytes)}{rounds}"


def _past(item: PlannedMethod) -> str:
    return measured_text(asdict(item.measured) if item.measured else {})


def _remark(item: PlannedMethod) -> str:
    waits = f"would wait for {item.waits_for}" if item.waits_for else ""
    return ";\n".join(part for part in (waits, item.remark, item.guarantee) if part)


def _compared(item: PlannedMethod) -> str:
    return "–" if item.compared is None else item.compared.text


def _work(item: PlannedMethod) -> str:
    return "unknown" if item.flops is None else f"{item.flops:.3g} FLOPs"
