"""The report as one self-contained page for a data-protection officer: no scripts, nothing to load.

Every text goes through the template's escaping; the only markup let through is that of our own plots.
"""

from functools import cache
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from server.report import words
from server.report.plots import attack_plot, score_plot
from server.report.rechecks import BEGIN, END, section
from server.report.report_data import ReportData
from server.report.templating import environment, style
from unlearning.one_line import list_first
from unlearning.verification.figures import AttackFigure


def render_page(data: ReportData) -> str:
    """Return the whole page as HTML text; equal reports give equal pages."""
    plots = {"scores": score_plot(data), "attacks": attack_plot(data)}
    return _template().render(
        data=data,
        verdict=data.verdict(),
        attacks=_attacks(data),
        headline=words.headline(data.to_json()),
        gaps=words.gaps(data),
        # our own plots; any text in them was escaped by the plotting library
        plots={name: Markup(svg) for name, svg in plots.items()},
        style=Markup(style()),
        rechecks=Markup(BEGIN) + section(()) + Markup(END),
        pairs=_pairs,
        listing=_listing,
    )


@cache
def _template() -> Template:
    return environment("server.report").get_template("report.html")


def _attacks(data: ReportData) -> list[tuple[str, str, AttackFigure]]:
    """Return each attack that ran, before the deletion and on the final model, with its figures."""
    return [
        (label, stage, item.figures[name])
        for name, label in words.FIGURE_NAMES.items()
        for stage, item in (("before", data.first("before")), ("after", data.final()))
        if item is not None and name in item.figures
    ]


def _pairs(values: dict[str, Any], between: str = " = ") -> str:
    return ", ".join(f"{name}{between}{value}" for name, value in sorted(values.items()))


def _listing(clients: tuple[str, ...], limit: int = 30) -> str:
    if not clients:
        return "none"
    return f"{len(clients):,}: {list_first(clients, limit)}"
