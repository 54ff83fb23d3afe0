"""The report's plots as SVG text, to stand inside the page.

Colours are Okabe and Ito's, which stay apart for colour-blind readers and in grey; each line also has
a marker and a dash of its own. The same data give the same text.
"""

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from server.report.data import ExchangeCost, ReportData
from unlearning.verification.measurement import Measurement
from unlearning.verification.standard_attacks import CONFIDENCE, YEOM

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
PAGE_COLOURS = {
    "#333d47": "currentColor",
    "#dde3e8": "var(--line)",
    "#9aa5af": "var(--rule)",
    "#fefefe": "var(--paper)",
}
"""What is drawn in these takes the page's colours (template.py), light or dark."""
INK, GRID, RULE, PAPER = PAGE_COLOURS
MAX_LABELS = 7  # more stage names than this would overlap


def score_plot(data: ReportData) -> str:
    """Draw the score on test, retained and forgotten data over the stages; empty if nothing was scored."""
    series = [
        ("test", [item.score("test") for item in data.measurements], BLUE, "o", "-"),
        ("retained", [item.score("retained") for item in data.measurements], GREEN, "^", ":"),
        ("forgotten", [item.score("forgotten") for item in data.measurements], ORANGE, "s", "--"),
    ]
    return _line_plot(data.measurements, series, "scores", f"{data.federation.score_name} over the stages")


def attack_plot(data: ReportData) -> str:
    """Draw the share of forgotten examples called members, over the stages; empty if no attack ran."""
    series = [
        ("loss attack", [item.attacks.get(YEOM) for item in data.measurements], ORANGE, "s", "-"),
        (
            "confidence attack",
            [item.attacks.get(CONFIDENCE) for item in data.measurements],
            PURPLE,
            "D",
            "--",
        ),
    ]
    return _line_plot(
        data.measurements, series, "attacks", "forgotten examples called members, over the stages"
    )


def cost_plot(data: ReportData) -> str:
    """Draw bytes (both directions) and seconds of unlearning, recovery and measuring, as far as all are known."""
    phases: list[tuple[str, ExchangeCost | None]] = [
        ("unlearning", data.unlearning),
        ("recovery", data.recovery),
        ("measuring", data.measuring),
    ]
    known = [
        (name, phase.seconds, phase.bytes_sent, phase.bytes_received)
        for name, phase in phases
        if phase is not None
        and phase.seconds is not None
        and phase.bytes_sent is not None
        and phase.bytes_received is not None
    ]
    if not known:
        return ""
    names, seconds = [name for name, *_ in known], [phase[1] for phase in known]
    sent, received = [phase[2] / 1e6 for phase in known], [phase[3] / 1e6 for phase in known]
    with _style():
        figure = Figure(figsize=(9.0, 0.62 + 0.42 * len(known)), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.barh(names, sent, color=BLUE, height=0.55, label="server to clients")
        left.barh(names, received, left=sent, color=ORANGE, height=0.55, hatch="///", edgecolor=PAPER,
                  label="clients to server")  # fmt: skip
        left.set_xlabel("megabytes")
        left.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderpad=0)
        right.barh(names, seconds, color=GREEN, height=0.55)
        right.set_xlabel("seconds")
        for axes in (left, right):
            axes.invert_yaxis()
            axes.xaxis.set_major_locator(MaxNLocator(5))
            _decorate(axes, grid="x")
        return _svg(figure, "costs", "Bytes and seconds of each phase")


def _line_plot(
    measurements: Sequence[Measurement],
    series: Sequence[tuple[str, Sequence[float | None], str, str, str]],
    name: str,
    label: str,
) -> str:
    drawn = [line for line in series if any(value is not None for value in line[1])]
    if not drawn:
        return ""
    with _style():
        figure = Figure(figsize=(4.6, 3.0), layout="constrained")
        axes = figure.subplots()
        positions = _positions(measurements)
        marker_size = 5.0 if len(measurements) <= 2 * MAX_LABELS else 3.0
        for legend, values, colour, marker, dash in drawn:
            points = [math.nan if value is None else value for value in values]
            axes.plot(
                positions, points, dash, color=colour, marker=marker, markersize=marker_size, label=legend
            )
        axes.set_xticks(positions, _stage_names(measurements))
        margin = 0.08 * max(positions[-1], 1.0)
        axes.set_xlim(-margin, positions[-1] + margin)
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %", decimals=0))
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderpad=0)
        _decorate(axes, grid="y")
        return _svg(figure, name, label)


def _positions(measurements: Sequence[Measurement]) -> list[float]:
    """Return where each stage stands. The first two get room for their names when recovery is long."""
    recoveries = sum(item.stage == "recovery" for item in measurements)
    room = max(1.0, recoveries / 3.5)
    positions, here = [], 0.0
    for item in measurements:
        positions.append(here)
        here += 1.0 if item.stage == "recovery" else room
    return positions


def _stage_names(measurements: Sequence[Measurement]) -> list[str]:
    """Return each stage's name, empty where it would overlap; recovery rounds count from the unlearned model."""
    unlearned = next((item.round for item in measurements if item.stage == "unlearned"), None)
    recoveries = [index for index, item in enumerate(measurements) if item.stage == "recovery"]
    # every stride-th, counted back from the last one: that is the model the text speaks of
    shown = set(recoveries[:: -max(1, math.ceil(len(recoveries) / MAX_LABELS))])
    names: list[str] = []
    for index, item in enumerate(measurements):
        if item.stage != "recovery":
            names.append(item.stage)
        elif index in shown:
            names.append(f"+{item.round - unlearned}" if unlearned is not None else f"round {item.round}")
        else:
            names.append("")
    return names


def _decorate(axes: Axes, grid: str) -> None:
    axes.grid(axis="y" if grid == "y" else "x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left" if grid == "y" else "bottom"):
        axes.spines[side].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(RULE)


@contextmanager
def _style() -> Iterator[None]:
    # text stays text (searchable, small); ids and clip paths do not change from run to run
    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "deletion report",
            "font.family": "sans-serif",
            "font.size": 9.5,
            "lines.linewidth": 1.8,
            "text.color": INK,
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "hatch.linewidth": 0.8,
        }
    ):
        yield


def _svg(figure: Figure, name: str, label: str) -> str:
    FigureCanvasSVG(figure)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    text = buffer.getvalue()
    body = text[text.index("<svg") :]  # without the XML head, which may not stand inside a page
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    for drawn, colour in PAGE_COLOURS.items():
        body = body.replace(drawn, colour)
    # every plot numbers its parts from one; in one page the ids must differ
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body)
    return body.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
