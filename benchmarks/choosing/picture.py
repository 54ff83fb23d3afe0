"""The picture on choosing a method: distance to retraining against cost, bytes on the left, seconds on the right."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench.figures import save
from benchmarks.choosing.measured import Case
from server.requests.comparisons import Comparison, Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

SHOWN = ("oracles", "cifar10", "cifar10-skew", "fashion", "heart-disease", "reuters-r8", "cifar10-samples",
         "cifar10-class", "fashion-class")  # fmt: skip

# Hues of Okabe and Ito, which people with any colour vision tell apart; one a family, and a marker of its own a method.
_ORANGE, _SKY, _GREEN, _BLUE, _VERMILION, _PURPLE, _BLACK = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#000000",
)  # fmt: skip
STYLES: Mapping[str, tuple[str, str]] = {
    "natural": (_BLACK, "o"),
    "puf-special": (_BLUE, "s"),
    "puf-regular": (_BLUE, "D"),
    "hf-kcu": (_VERMILION, "^"),
    "hf-kcu-influence": (_VERMILION, "v"),
    "newton-cg": (_VERMILION, "<"),
    "gradient-ascent": (_PURPLE, "x"),
    "pga": (_PURPLE, "+"),
    "federaser": (_GREEN, "*"),
    "sisa": (_GREEN, "p"),
    "mode": (_GREEN, "h"),
    "fedau": (_ORANGE, "d"),
    "fedau-learning": (_ORANGE, ">"),
    "not": (_SKY, "8"),
    "neggrad-plus": (_PURPLE, "X"),
    "fedosd": (_PURPLE, "P"),
    "fedquit": (_ORANGE, "H"),
    "fedmemprune": (_SKY, "1"),
    "exact-ridge": (_BLACK, "2"),
}
"""Nothing done; pseudo-gradients; second order; ascent; training anew in part; heads and outputs; negated weights."""

_SMALLEST = 0.1
"""Points under this are drawn here."""


def draw(cases: Sequence[Case], comparisons: Mapping[str, Comparison], path: Path) -> None:
    """Write the PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    shown = [case for case in cases if case.key in SHOWN]
    size = (10.5, 2.75 * len(shown) + 1.3)
    figure, rows = plt.subplots(len(shown), 2, figsize=size, sharey="row", layout="constrained")
    for case, (left, right) in zip(shown, rows, strict=True):
        _panel(left, case, comparisons[case.key], "bytes")
        if case.is_timed:
            _panel(right, case, comparisons[case.key], "seconds")
        else:
            right.set_axis_off()
            right.text(0.5, 0.5, "no seconds: the machine was busy", ha="center", transform=right.transAxes)
        left.set_title(case.title, loc="left", fontsize=10, fontweight="bold")
        left.set_ylabel(
            "KLoM, forgotten examples" if case.beside_oracles else "points off Retrain", fontsize=9
        )
    rows[-1][0].set_xlabel("bytes, share of retraining's")
    rows[-1][1].set_xlabel("seconds, share of retraining's")
    marks = [
        Line2D([], [], color=colour, marker=marker, linestyle="", markersize=8, label=name)
        for name, (colour, marker) in STYLES.items()
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    figure.suptitle(
        "Down and left is better; bars: ± over seeds; grey: worse than doing nothing; dotted: retraining's cost",
        fontsize=11,
    )
    save(figure, path)
    plt.close(figure)


def _panel(axes: "Axes", case: Case, found: Comparison, cost: str) -> None:
    """Draw one case over one cost; both axes are logarithmic, but for KLoM."""
    for name, one in found.methods.items():
        if not _cost(one, cost):
            continue  # exact ridge costs nothing there, which no logarithmic axis has
        colour, marker = STYLES[name]
        share = _cost(one, cost) / _cost(found.retrain, cost)
        shape: dict[str, Any] = {"marker": marker, "markersize": 11 if marker == "*" else 8, "color": colour}
        edge: dict[str, Any] = (
            {"markeredgewidth": 2}
            if marker in "x+12"
            else {"markeredgecolor": "white", "markeredgewidth": 0.6}
        )
        height = max(one.distance, _SMALLEST)
        axes.plot([share], [height], linestyle="", zorder=3, **shape, **edge)
        if one.spread:
            ends = [max(height - one.spread, _SMALLEST), height + one.spread]
            axes.plot([share, share], ends, color=colour, linewidth=1.2, alpha=0.7, zorder=2)
    axes.set_xscale("log")
    if case.beside_oracles:
        axes.axhline(found.retrain.distance, color="0.3", linestyle="--", linewidth=1)
        axes.annotate("two sets of oracles", (1.0, found.retrain.distance), xycoords=("axes fraction", "data"),
                      ha="right", va="bottom", fontsize=8, color="0.3")  # fmt: skip
        top = 1.08 * max(one.distance for one in [found.nothing, *found.methods.values()])
        axes.set_ylim(0.85 * found.retrain.distance, top)
    else:
        axes.set_yscale("log")
        _plain(axes.yaxis)
    low, high = axes.get_ylim()
    axes.axhspan(found.nothing.distance, high, color="0.92", zorder=0)
    axes.set_ylim(low, high)
    axes.axvline(1.0, color="0.5", linestyle=":", linewidth=1)
    _plain(axes.xaxis)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, which="major", color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)


def _plain(axis: "Axis") -> None:
    """Write 1, 2 and 5 times powers of ten as people do."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _cost(one: Figures, cost: str) -> float:
    return one.bytes if cost == "bytes" else one.seconds
