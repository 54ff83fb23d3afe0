"""Figures of an experiment: forgetting against recovery cost, radar, recovery curves, speed-up against accuracy."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench.columns import ORIGINAL, RETRAIN, Row, is_retrain, retrain_for
from benchmarks.bench.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "os^Dv<>PX*hpd8"

_FEWEST = 3
"""Methods that a picture is of at least: two are told apart in their table, none was run."""

_COLOURS = 64

_SMALLEST = 0.1
"""Percentage points and rounds under this are drawn here, on logarithmic and radial axes."""


def draw(experiment: Experiment, rows: Sequence[Row], output: Path) -> list[Path]:
    """Write `OUTPUT-NUMBER.png` for each setting and case that compares enough methods; returns the files."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    written = []
    sections = [(setting.name, case.name) for setting in experiment.settings for case in experiment.cases]
    for number, section in enumerate(sections, start=1):
        groups: dict[str, list[Row]] = {}
        for row in rows:
            if (row["setting"], row["case"]) == section and "failed" not in row:
                groups.setdefault(row["method"], []).append(row)
        methods = [name for name in groups if name != ORIGINAL and not is_retrain(name)]
        if len(methods) < _FEWEST or RETRAIN not in groups:
            continue
        palette = [mpl.colormaps["tab20"](index) for index in range(20)]  # ten hues, each dark and light
        styles = {
            name: (
                mpl.colors.to_hex(palette[(2 * index) % 20 + index // 10 % 2]),
                _MARKERS[index % len(_MARKERS)],
            )
            for index, name in enumerate(methods)
        }
        panels: list[Panel] = [_forgetting, _speed]
        if _recovers(groups, methods):
            panels.append(partial(_curves, curve="curve", level="test"))
            if any(row.get("forget_curve") for name in methods for row in groups[name]):
                panels.append(partial(_curves, curve="forget_curve", level="forget"))
        panels.append(_radar)
        figure = plt.figure(figsize=(13 + 6.5 * (len(panels) > 4), 10), layout="constrained")
        for index, panel in enumerate(panels, start=1):
            projection = "polar" if panel is _radar else None
            axes = figure.add_subplot(2, 3 if len(panels) > 4 else 2, index, projection=projection)
            panel(axes, groups, styles)
        heading = ": ".join(filter(None, (experiment.title, *section)))
        figure.suptitle(f"{heading} ({len(experiment.seeds)} seed(s))")
        path = output.with_name(f"{output.name}-{number}.png")
        save(figure, path)
        plt.close(figure)
        written.append(path)
    return written


def save(figure: "Figure", path: Path) -> None:
    """Write a PNG with a palette: a quarter of the size, and a drawing has few colours."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, dpi=72, format="png")
    picture = Image.open(drawn).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)


Styles = Mapping[str, tuple[str, str]]
Groups = Mapping[str, Sequence[Row]]
Panel = Callable[["Axes", Groups, Styles], None]


def _forgetting(axes: "Axes", groups: Groups, styles: Styles) -> None:
    """Draw forgetting over recovery rounds; over bytes where no method had a recovery round."""
    recovers = _recovers(groups, styles)
    cost = "recovery_rounds" if recovers else "bytes"
    for name, (colour, marker) in styles.items():
        gap = _gap(groups, name, lambda row: row["forget"])
        if gap is not None:
            x = statistics.fmean(row[cost] for row in groups[name])
            axes.scatter([x], [gap], color=colour, marker=marker, s=70, label=name)
    axes.set_xlabel("recovery rounds" if recovers else "bytes exchanged")
    if not recovers:
        axes.set_xscale("log")
    axes.set_ylabel("distance of forget accuracy to Retrain, points")
    axes.set_title(f"Forgetting against {'recovery ' if recovers else ''}cost (down and left is better)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))  # beside, where it hides no point


def _speed(axes: "Axes", groups: Groups, styles: Styles) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for name, (colour, marker) in styles.items():
        retrain = statistics.fmean(row["seconds"] for row in retrain_for(name, groups))
        seconds = statistics.fmean(row["seconds"] for row in groups[name])
        test = 100 * _mean(groups[name], "test")
        if seconds > 0:
            axes.scatter([retrain / seconds], [test], color=colour, marker=marker, s=70)
    axes.axhline(100 * _mean(groups[RETRAIN], "test"), color="0.4", linestyle="--", label="Retrain")
    axes.axvline(1.0, color="0.8")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())  # its labels would lie over each other
    axes.set_xlabel("speed-up over Retrain, measured seconds")
    axes.set_ylabel("test accuracy, %")
    axes.set_title("Speed-up against accuracy (up and right is better)")
    axes.legend(fontsize=8)


def _curves(axes: "Axes", groups: Groups, styles: Styles, *, curve: str, level: str) -> None:
    for name, (colour, marker) in styles.items():
        curves = [row[curve] for row in groups[name] if row.get(curve)]
        if not curves:
            continue
        shortest = min(map(len, curves))
        mean = [100 * statistics.fmean(values[index] for values in curves) for index in range(shortest)]
        axes.plot(range(len(mean)), mean, color=colour, marker=marker, markersize=4)
    reached = _mean(groups[RETRAIN], level)
    axes.axhline(100 * reached, color="0.4", linestyle="--")
    axes.set_xlabel("recovery round (0: the unlearned model), as far as all seeds went")
    axes.set_ylabel(f"{level} accuracy, %")
    axes.set_title(f"Recovery: {level} accuracy (dashed: Retrain)")


def _radar(axes: "Axes", groups: Groups, styles: Styles) -> None:
    """Draw each axis from the worst (centre) to the best (rim) of the methods compared."""
    measures: dict[str, Callable[[str], float | None]] = {
        "forget Δ": lambda name: _gap(groups, name, lambda row: row["forget"]),
        "attack Δ": lambda name: _gap(groups, name, lambda row: row["attacks"].get("confidence")),
        "bytes": lambda name: _mean(groups[name], "bytes"),
        "FLOPs": lambda name: _mean(groups[name], "flops"),
        "storage": lambda name: _mean(groups[name], "storage"),
    }
    if _recovers(groups, styles):
        measures["recovery"] = lambda name: _mean(groups[name], "recovery_rounds")
    angles = [2 * math.pi * index / len(measures) for index in range(len(measures))]
    found = {label: {name: value_of(name) for name in styles} for label, value_of in measures.items()}
    for name, (colour, _) in styles.items():
        radii = []
        for label in measures:
            values = [math.log(max(v, _SMALLEST)) for v in found[label].values() if v is not None]
            own = found[label][name]
            low, high = min(values, default=0.0), max(values, default=0.0)
            if own is None:
                radii.append(0.0)
            else:
                at = math.log(max(own, _SMALLEST))
                radii.append(1.0 if high == low else 0.1 + 0.9 * (high - at) / (high - low))
        axes.plot([*angles, angles[0]], [*radii, radii[0]], color=colour)
    axes.set_xticks(angles, list(measures))
    axes.tick_params(axis="x", pad=14)
    axes.set_yticklabels([])
    axes.set_ylim(0, 1)
    axes.set_title("Rim: best of these methods, centre: worst (logarithmic)", fontsize=10)


def _recovers(groups: Groups, methods: Iterable[str]) -> bool:
    """Return whether any method had a recovery round."""
    return any(row["recovery_rounds"] for name in methods for row in groups[name])


def _gap(groups: Groups, name: str, value_of: Callable[[Row], float | None]) -> float | None:
    reference = {row["seed"]: value_of(row) for row in retrain_for(name, groups)}
    pairs = [(value_of(row), reference.get(row["seed"])) for row in groups[name]]
    gaps = [100 * abs(own - other) for own, other in pairs if own is not None and other is not None]
    return statistics.fmean(gaps) if gaps else None


def _mean(rows: Sequence[Row], key: str) -> float:
    return statistics.fmean(row.get(key) or 0.0 for row in rows)
