"""Accuracy and loss over the rounds as SVG. It has classes and no style of its own, which the page's policy forbids.

Lines differ by dash and marker as well as by colour, and the table below the chart says the same.
"""

from collections.abc import Callable, Sequence
from html import escape

from server.console.federation import figure
from server.ledger import RoundRecord

WIDTH, HEIGHT = 720, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 26, 26
MAX_POINTS = 300


def rounds_chart(records: Sequence[RoundRecord], name: str, label: str, form: Callable[[float], str]) -> str:
    """Draw one figure (`name` of the rounds' metrics) over the rounds, deletions marked; "" where none has it.

    form: how a value is written at the axis.
    """
    shown = [
        (record, value) for record in records[-MAX_POINTS:] if (value := figure(record, name)) is not None
    ]
    if len(shown) < 2:
        return ""
    values = [value for _, value in shown]
    low, high = min(values), max(values)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    first, last = shown[0][0].round, shown[-1][0].round

    def x(number: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (number - first) / max(1, last - first)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [*_grid(low, high, y, form), *_deletions(records[-MAX_POINTS:], first, last, x)]
    parts += [
        f'<text class="tick" x="{x(number):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{text}</text>'
        for number, anchor, text in ((first, "start", f"round {first}"), (last, "end", f"{last}"))
    ]
    points = " ".join(f"{x(record.round):.1f},{y(value):.1f}" for record, value in shown)
    parts.append(f'<polyline class="line" points="{points}"/>')
    parts += [
        f'<circle class="mark {record.kind}" cx="{x(record.round):.1f}" cy="{y(value):.1f}" r="3"/>'
        for record, value in shown
        if record.kind != "training" or len(shown) <= 60
    ]
    told = f"{label} over rounds {first} to {last}: from {form(values[0])} to {form(values[-1])}"
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(told)}">'
        f"{''.join(parts)}</svg>"
    )


def _grid(low: float, high: float, y: Callable[[float], float], form: Callable[[float], str]) -> list[str]:
    parts = []
    for value in (low, (low + high) / 2, high):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(form(value))}</text>'
        )
    return parts


def _deletions(records: Sequence[RoundRecord], first: int, last: int, x: Callable[[int], float]) -> list[str]:
    """Return a dashed line at each unlearning round, with the id of what it served where there is room."""
    parts: list[str] = []
    free_from = 0.0
    for record in records:
        if record.kind != "unlearning" or not first <= record.round <= last:
            continue
        at = x(record.round)
        parts.append(
            f'<line class="deletion" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        text = ", ".join(record.request_ids[:1]) or "deletion"
        if at >= free_from:
            anchor = "end" if at > WIDTH - 80 else "start"
            parts.append(
                f'<text class="tick" x="{at:.1f}" y="{TOP - 8}" text-anchor="{anchor}">{escape(text)}</text>'
            )
            free_from = at + 70
    return parts
