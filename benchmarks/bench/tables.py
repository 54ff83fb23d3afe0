"""The papers' tables from rows: mean over seeds, distance or gain to Retrain, and the paper's rows below ours."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.bench.cases import Case, Published, Setting
from benchmarks.bench.columns import COLUMNS, ORIGINAL, RETRAIN, TABLES, Row, retrain_for
from benchmarks.bench.experiment import Experiment

TITLES = {ORIGINAL: "Original", RETRAIN: "Retrain"}

LEGEND = (
    "Mean over seeds; ± standard deviation. (Δ): mean ± standard deviation of the distance to Retrain of the same "
    "seed, in points where the figure is in %. A method whose model is of another kind than ordinary training's is "
    "compared with a Retrain of its own kind. (×): Retrain's cost over the method's, unlearning and recovery "
    "together. Recovery ends at Retrain's test score (without the class, where one is forgotten) or after the most "
    "rounds allowed. Attacks in %: the share of the forgotten examples called members. Bytes are payload in both "
    "directions, seconds those of exchanges with clients one after the other, both measured; FLOPs are those of the "
    "closed formulas (Retrain's and Original's: examples times FLOPs of one). Storage: a model and what is kept beside "
    "it before the request. Peak memory: of the process in which the clients' work was done. AUC: forgotten against "
    "test examples, 0.5 is guessing."
)


def markdown(
    experiment: Experiment, rows: Sequence[Row], command: str, circumstances: Mapping[str, Any]
) -> str:
    """Return all tables of an experiment with what they depend on."""
    lines = [f"# {experiment.title}", ""]
    if experiment.about:
        lines += [experiment.about.strip(), ""]
    for setting in experiment.settings:
        for case in experiment.cases:
            lines += _section(experiment, setting, case, rows)
    sources = dict.fromkeys(item.source for item in experiment.published)
    lines += [LEGEND, ""]
    if sources:
        lines += [
            "Rows in italics are the papers' own, at their size:",
            "",
            *(f"- {source}" for source in sources),
            "",
        ]
    return "\n".join([*lines, *_facts(command, circumstances)]) + "\n"


def _section(experiment: Experiment, setting: Setting, case: Case, rows: Sequence[Row]) -> Iterable[str]:
    mine = [row for row in rows if (row["setting"], row["case"]) == (setting.name, case.name)]
    names = [ORIGINAL, *(contender.name for contender in experiment.methods), *_retrainings(experiment)]
    groups = {name: group for name in names if (group := [row for row in mine if row["method"] == name])}
    published = [item for item in experiment.published if item.belongs(setting, case)]
    heading = ": ".join(filter(None, (setting.name, case.name)))
    if heading[:1].isascii():  # "α = 0.1" stays as it is
        heading = heading[:1].upper() + heading[1:]
    yield from (f"## {heading}", "")
    if not groups:
        yield from ("Not run.", "")
        return
    for columns in (experiment.columns,) if experiment.columns else TABLES:
        yield from _table(groups, columns, published)
    yield from _references(experiment, groups)
    failures = [f"- {row['method']}, seed {row['seed']}: {row['failed']}" for row in mine if "failed" in row]
    if failures:
        yield from ("Failed:", "", *failures, "")
    missing = list(_not_run(experiment, case, mine))
    if missing:
        yield from (f"Not run: {', '.join(missing)}.", "")
    left_out = [c.name for c in experiment.methods if not experiment.serves(c, case)]
    if left_out:
        yield from (f"Not in this table, because they refuse such a request: {', '.join(left_out)}.", "")


def _references(experiment: Experiment, groups: Mapping[str, Sequence[Row]]) -> Iterable[str]:
    """Yield which retraining each method of its own kind is compared with, and that all others are with Retrain."""
    own = [one for one in experiment.methods if one.retraining and one.name in groups]
    if own:
        named = ", ".join(
            f"{one.name} with *{one.retrain if one.retrain in groups else RETRAIN}*" for one in own
        )
        yield from (f"Compared: {named}; all others with Retrain.", "")


def _retrainings(experiment: Experiment) -> list[str]:
    """Return the rows that others are compared with."""
    return [*dict.fromkeys([RETRAIN, *(contender.retrain for contender in experiment.methods)])]


def _not_run(experiment: Experiment, case: Case, rows: Sequence[Row]) -> Iterable[str]:
    """Yield each method that lacks rows, with the seeds in brackets where it has others."""
    served = [one for one in experiment.methods if experiment.serves(one, case)]
    for name in dict.fromkeys(
        [ORIGINAL, RETRAIN, *(one.name for one in served), *(one.retrain for one in served)]
    ):
        there = {row["seed"] for row in rows if row["method"] == name}
        absent = [str(seed) for seed in experiment.seeds if seed not in there]
        if absent:
            yield f"{name} (seed {', '.join(absent)})" if there else name


def _table(
    groups: Mapping[str, Sequence[Row]], columns: Sequence[str], published: Sequence[Published]
) -> Iterable[str]:
    """Yield a table; a column in which nobody has a figure is left out, and so is a table without columns."""
    cells = {
        column: [
            COLUMNS[column].cell(name, group, retrain_for(name, groups)) for name, group in groups.items()
        ]
        for column in columns
    }
    shown = [column for column, values in cells.items() if set(values) != {"–"}]
    if not shown:
        return
    yield "| method | " + " | ".join(COLUMNS[column].heading for column in shown) + " |"
    yield "|---" * (1 + len(shown)) + "|"
    for number, name in enumerate(groups):
        if name in TITLES and all(cells[column][number] == "–" for column in shown):
            continue  # Retrain beside itself; a method without any figure has failed, and its row says so
        yield "| " + " | ".join([TITLES.get(name, name), *(cells[column][number] for column in shown)]) + " |"
        for item in published:
            values = dict(zip(item.columns, item.rows.get(name, ()), strict=False))
            if any(column in values for column in shown):
                theirs = (f"*{values[column]}*" if column in values else "" for column in shown)
                yield "| " + " | ".join([f"*{item.source.partition(',')[0]}*", *theirs]) + " |"
    yield ""


def _facts(command: str, circumstances: Mapping[str, Any]) -> Iterable[str]:
    yield "## How it was made"
    yield ""
    yield f"    {command}"
    yield ""
    for name, value in circumstances.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        yield f"- {name}: {value}"
