"""Makes docs/results/persistence: what is left of deletions over 100 further rounds, and relearn times.

    python -m benchmarks.persistence --output docs/results/persistence

Each row that is finished stays in the work directory, so an interrupted command goes on where it was.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.persistence.runs import CASES, FURTHER, MOST, RECOVERY, ROUNDS, measured, row_path
from benchmarks.tables import Row, table, write
from unlearning.methods.registry import METHODS as REGISTRY

METHODS: Mapping[str, tuple[str, ...]] = {
    "a client": ("retrain", *(name for name in REGISTRY if name != "retrain")),
    "a class": ("retrain", "natural", "puf-special", "not", "gradient-ascent", "newton-cg"),
    "a client with copies": ("retrain", "puf-special", "not", "gradient-ascent", "neggrad-plus"),
}
SHOWN = (0, 5, 20, 100)
COLOURED = (
    *("retrain", "natural", "puf-special", "puf-regular", "not", "gradient-ascent"),
    *("newton-cg", "federaser", "exact-ridge", "noisy-fine-tuning"),
)
"""Methods with a colour in the picture; the others are grey."""
RELEARN = ("relearn_loss", "relearn_score")
DRAWN = {"a client": "score", "a class": "class-test", "a client with copies": "score"}
"""What is drawn of each case: the score on the client's records, the share of the class's test records recognised."""


def main(
    output: Annotated[Path, typer.Option(help="Page, figures and picture, without the ending.")],
    work: Annotated[Path, typer.Option(help="Where finished rows stay.")] = Path("runs/persistence"),
    only: Annotated[str, typer.Option(help="Measure one case, and write no page.")] = "",
    finished: Annotated[bool, typer.Option(help="Write the page of the rows that are finished.")] = False,
) -> None:
    """Measure and write the page."""
    work.mkdir(parents=True, exist_ok=True)
    work = work.resolve()
    wanted = [(case, method) for case in ([only] if only else CASES) for method in METHODS[case]]
    rows = [measured(work, *one) for one in wanted if not finished or row_path(work, *one).exists()]
    if only:
        return
    lines = [
        "# Whether deletions last",
        "",
        f"Made by `python -m benchmarks.persistence --output {output}`. 600 digits, a network of one hidden layer "
        "(exact ridge: a linear layer), "
        f"four clients (Dirichlet 0.3), one seed, in one process. After {ROUNDS} rounds a client or class 3 is "
        f"forgotten; {RECOVERY} rounds of recovery and {FURTHER} further ones follow without the data. Rechecks go "
        "by the rule of a live federation. *With copies*: every second record of the client is at another client "
        "too, under another id. *Relearn*: rounds of training on the forgotten data alone until its loss (its "
        f"accuracy) is the original model's; at most {MOST} were tried. "
        f"{len(rows)} of {len(wanted)} rows were measured.",
        "",
        f"![What was forgotten, over further rounds]({output.name}.png)",
    ]
    for case, what in DRAWN.items():
        lines += [
            "",
            f"## {case.capitalize()}",
            "",
            *_table([row for row in rows if row["case"] == case], what),
        ]
    _draw(rows, output.with_suffix(".png"))
    named = {
        f"{row['case']} {row['method']}": {**row, "relearnt": _rounds(row, "relearn_score")} for row in rows
    }
    write(output, lines, {"rows": named})


def _table(rows: list[Row], what: str) -> list[str]:
    after = [f"{number} rounds" if number else "at completion" for number in SHOWN]
    name = "accuracy on its records" if what == "score" else "test records recognised"
    headings = [
        "method",
        f"{name}, before",
        *after,
        "AUC before",
        "AUC at completion",
        f"AUC {FURTHER} rounds",
    ]
    headings += ["effect at completion", f"after {FURTHER} rounds", "relearn, loss", "relearn, accuracy"]
    refused = [f"- `{row['method']}`: {row['failed']}" for row in rows if "failed" in row]
    lines = table(headings, [_cells(row, what) for row in rows if "failed" not in row])
    return [*lines, "", "Refused:", "", *refused] if refused else lines


def _cells(row: Row, what: str) -> list[str]:
    curve = {int(number): levels for number, levels in row["curve"].items()}
    levels = [row["before"], *(curve.get(number, {}) for number in SHOWN)]
    areas = [row["before"], curve[0], curve.get(FURTHER, {})]
    reopened = row["reopened_after"]
    return [
        row["method"],
        *(_percent(one.get(what)) for one in levels),
        *("–" if (area := one.get("auc")) is None else f"{area:.2f}" for one in areas),
        row["then"] or "–",
        f"reopened after {reopened}" if reopened else row["now"] or "–",
        *(_rounds(row, key) for key in RELEARN),
    ]


def _rounds(row: Row, key: str) -> str:
    return f"more than {MOST}" if row.get(key) is None else str(row[key])


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _draw(rows: list[Row], path: Path) -> None:
    figure = Figure(figsize=(14.0, 4.4), layout="constrained")
    colours = {method: f"C{number}" for number, method in enumerate(COLOURED)}
    for axes, (case, what) in zip(figure.subplots(1, len(DRAWN)), DRAWN.items(), strict=True):
        for row in rows:
            if row["case"] != case or "curve" not in row:
                continue
            points = sorted(
                (int(number), levels[what]) for number, levels in row["curve"].items() if what in levels
            )
            name = row["method"]
            drawn = {"marker": ".", "label": name, "zorder": 2} if name in colours else {"linewidth": 0.8}
            axes.plot(*zip(*points, strict=True), color=colours.get(name, "lightgrey"), **drawn)
        before = [row["before"][what] for row in rows if row["case"] == case and "before" in row]
        axes.axhline(before[0], color="black", linestyle="--", linewidth=1.0, label="before")
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(-0.2, 1.3 * FURTHER)
        axes.set_xlabel("further rounds")
        axes.set_title(
            f"{case}: {'accuracy on its records' if what == 'score' else 'test records recognised'}"
        )
        axes.set_ylim(-0.03, 1.03)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, title="others: grey")
    figure.savefig(path, dpi=90)
    Image.open(path).convert("RGB").quantize(32).save(path, optimize=True)


if __name__ == "__main__":
    typer.run(main)
