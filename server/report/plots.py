"""The plots of the report and of the console as SVG text, to be put into the page.

They have attributes in place of styles, which the console's pages forbid. Colours are Okabe and Ito's, which stay apart
for colour-blind readers and in grey; each line also has a marker and a dash of its own. The same data give the same
text.
"""

import io
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from html import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from server.report.report_data import ReportData
from unlearning.verification.figures import CONFIDENCE, YEOM, Measurement

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
PAGE_COLOURS = {
    "#333d47": "currentColor",
    "#dde3e8": "var(--line)",
    "#9aa5af": "var(--rule)",
}
"""What is drawn in these takes the page's colours (static/style.css), light or dark."""
INK, GRID, RULE = PAGE_COLOURS
EVERYWHERE = "stroke-linejoin: round; stroke-linecap: butt"
MAX_LABELS = 7  # more stage names than this would overlap
_drawing = (
    threading.Lock()
)  # the console draws in several threads, and Matplotlib's settings are the process's


def score_plot(data: ReportData) -> str:
    """Draw the score on test, retained and forgotten data over the stages; empty if nothing was scored."""
    found = data.measurements
    series = (
        ("test", tuple(item.score("test") for item in found), BLUE, "o", "-"),
        ("retained", tuple(item.score("retained") for item in found), GREEN, "^", ":"),
        ("forgotten", tuple(item.score("forgotten") for item in found), ORANGE, "s", "--"),
    )
    return _line_plot(_stages(found), series, "scores", f"{data.federation.score_name} over the stages")


def attack_plot(data: ReportData) -> str:
    """Draw the share of forgotten records that attacks recognise, over the stages; empty if no attack ran."""
    found = data.measurements
    yeom, confidence = (tuple(item.attacks.get(name) for item in found) for name in (YEOM, CONFIDENCE))
    series = (("loss attack", yeom, ORANGE, "s", "-"), ("confidence attack", confidence, PURPLE, "D", "--"))
    return _line_plot(_stages(found), series, "attacks", "forgotten records recognised, over the stages")


@lru_cache(maxsize=8)
def rounds_plot(
    rounds: tuple[tuple[int, str, float], ...], deletions: tuple[tuple[int, str], ...], name: str, label: str
) -> str:
    """Draw a figure of a live federation's rounds; empty for fewer than two of them.

    rounds: number, kind and value of each. deletions: the rounds with a deletion, and what it served.
    """
    if len(rounds) < 2:
        return ""
    with _style():
        figure = Figure(figsize=(9.0, 2.6), layout="constrained")
        axes = figure.subplots()
        axes.plot([number for number, _, _ in rounds], [value for _, _, value in rounds], color=BLUE)
        special = [(number, value) for number, kind, value in rounds if kind != "training"]
        axes.plot(
            [at for at, _ in special], [value for _, value in special], "D", color=ORANGE, markersize=5.0
        )
        width = rounds[-1][0] - rounds[0][0]
        free_from = rounds[0][0] - 1.0
        for number, text in deletions:
            axes.axvline(number, color=RULE, linestyle="--", linewidth=1.0)
            if number >= free_from:  # a label that would overlap the one before is left out
                axes.annotate(text, (number, 1.02), xycoords=axes.get_xaxis_transform(), ha="center")
                free_from = number + width / 10
        axes.xaxis.set_major_locator(MaxNLocator(MAX_LABELS, integer=True))
        axes.set_xlabel("round")
        if name.endswith("score"):
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        _decorate(axes)
        return _svg(figure, name, f"{label} over rounds {rounds[0][0]} to {rounds[-1][0]}")


@lru_cache(maxsize=8)
def recheck_plot(
    points: tuple[tuple[int, tuple[tuple[str, float], ...]], ...],
    before: tuple[tuple[str, float], ...],
    labels: tuple[tuple[str, str], ...],
) -> str:
    """Draw what rechecks measured over the rounds since the completion, with the levels `before`; empty without one.

    points: rounds, and the values by name of `labels`, the first at the completion.
    """
    if len(points) < 2:
        return ""
    original = dict(before)
    looks = zip(labels, (ORANGE, PURPLE, BLUE), "soD", strict=True)
    with _style():
        figure = Figure(figsize=(9.0, 2.6), layout="constrained")
        axes = figure.subplots()
        for (name, label), colour, marker in looks:
            drawn = [(at, dict(values)[name]) for at, values in points if name in dict(values)]
            if not drawn:
                continue
            axes.plot(*zip(*drawn, strict=True), color=colour, marker=marker, label=label)
            if name in original:
                axes.axhline(original[name], color=colour, linestyle="--", linewidth=1.0)
        axes.set_ylim(-0.03, 1.03)
        axes.xaxis.set_major_locator(MaxNLocator(MAX_LABELS, integer=True))
        axes.set_xlabel("rounds since the completion; dashed: before the deletion")
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderpad=0)
        _decorate(axes)
        return _svg(figure, "rechecks", "what was forgotten, over the rounds since the completion")


Stages = tuple[tuple[str, int], ...]
"""The stage and the round of each measurement."""


def _stages(measurements: Sequence[Measurement]) -> Stages:
    return tuple((item.stage, item.round) for item in measurements)


@lru_cache(maxsize=64)
def _line_plot(
    stages: Stages,
    series: tuple[tuple[str, tuple[float | None, ...], str, str, str], ...],
    name: str,
    label: str,
) -> str:
    """Draw lines over the stages. Requests of one client that are carried out together have the same plots."""
    drawn = [line for line in series if any(value is not None for value in line[1])]
    if not drawn:
        return ""
    with _style():
        figure = Figure(figsize=(4.6, 3.0), layout="constrained")
        axes = figure.subplots()
        positions = _positions(stages)
        marker_size = 5.0 if len(stages) <= 2 * MAX_LABELS else 3.0
        for legend, values, colour, marker, dash in drawn:
            points = [math.nan if value is None else value for value in values]
            axes.plot(
                positions, points, dash, color=colour, marker=marker, markersize=marker_size, label=legend
            )
        axes.set_xticks(positions, _stage_names(stages))
        margin = 0.08 * max(positions[-1], 1.0)
        axes.set_xlim(-margin, positions[-1] + margin)
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %", decimals=0))
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderpad=0)
        _decorate(axes)
        return _svg(figure, name, label)


def _positions(stages: Stages) -> list[float]:
    """Return where each stage stands. The first two get room for their names when recovery is long."""
    recoveries = sum(stage == "recovery" for stage, _ in stages)
    room = max(1.0, recoveries / 3.5)
    positions, here = [], 0.0
    for stage, _ in stages:
        positions.append(here)
        here += 1.0 if stage == "recovery" else room
    return positions


def _stage_names(stages: Stages) -> list[str]:
    """Return each stage's name, empty where it would overlap; recovery rounds count from the unlearned model."""
    unlearned = next((number for stage, number in stages if stage == "unlearned"), None)
    recoveries = [index for index, (stage, _) in enumerate(stages) if stage == "recovery"]
    # every stride-th, counted back from the last one: that is the model the text speaks of
    shown = set(recoveries[:: -max(1, math.ceil(len(recoveries) / MAX_LABELS))])
    names: list[str] = []
    for index, (stage, number) in enumerate(stages):
        if stage != "recovery":
            names.append(stage)
        elif index in shown:
            names.append(f"+{number - unlearned}" if unlearned is not None else f"round {number}")
        else:
            names.append("")
    return names


def _decorate(axes: Axes) -> None:
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(RULE)


@contextmanager
def _style() -> Iterator[None]:
    # text stays text (searchable, small); ids and clip paths do not change from run to run
    settings = mpl.rc_context(
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
        }
    )
    with _drawing, settings:
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
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r'style="([^"]*)"', lambda found: _attributes(found[1]), body)
    # every plot numbers its parts from one; in one page the ids must differ
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body)
    opening = f'<svg role="img" aria-label="{escape(label)}" {_attributes(EVERYWHERE)}'
    return body.replace("<svg", opening, 1)


def _attributes(style: str) -> str:
    """Return a style as attributes: `fill: none; stroke: red` as `fill="none" stroke="red"`."""
    pairs = (part.partition(":") for part in style.split(";") if part.strip())
    return " ".join(f'{name.strip()}="{value.strip()}"' for name, _, value in pairs)
