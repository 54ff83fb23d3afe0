"""The papers' tables from rows: mean ± standard deviation over seeds, distance or gain to Retrain."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from server.bench.experiment import Experiment
from server.bench.parts import ORIGINAL, RETRAIN, Row

TITLES = {ORIGINAL: "Original", RETRAIN: "Retrain"}

Value = Callable[[Row], float | None]

ACCURACIES: Mapping[str, Value] = {
    "test %": lambda row: _percent(row.get("test")),
    "retained %": lambda row: _percent(row.get("retained")),
    "forget % (Δ)": lambda row: _percent(row.get("forget")),
    "confidence attack % (Δ)": lambda row: _percent(row["attacks"].get("confidence")),
    "Yeom % (Δ)": lambda row: _percent(row["attacks"].get("yeom")),
}
COSTS: Mapping[str, Value] = {
    "recovery rounds": lambda row: row.get("recovery_rounds"),
    "bytes (gain)": lambda row: row.get("bytes"),
    "FLOPs (gain)": lambda row: row.get("flops") or None,  # 0: there was no example to count on
    "seconds (gain)": lambda row: row.get("seconds"),
    "kept on the server, bytes": lambda row: row.get("server_bytes"),
    "kept by the clients, bytes": lambda row: row.get("client_bytes"),
}
DISTANCES: Mapping[str, Value] = {
    "parameter gap": lambda row: row.get("parameter_gap"),
    "KL": lambda row: row.get("kl"),
    "logit MSE": lambda row: row.get("logit_mse"),
    "same predictions %": lambda row: _percent(row.get("agreement")),
    "forget % before recovery": lambda row: _percent(row.get("forget_unlearned")),
    "test % before recovery": lambda row: _percent(row.get("test_unlearned")),
}


def markdown(experiment: Experiment, rows: Sequence[Row], circumstances: Mapping[str, Any]) -> str:
    """All tables of an experiment with what they depend on."""
    lines = [f"# {experiment.title}", ""]
    if experiment.about:
        lines += [experiment.about.strip(), ""]
    for case in experiment.cases:
        mine = [row for row in rows if row["case"] == case.name]
        names = list(dict.fromkeys(row["method"] for row in mine))
        ordered = [ORIGINAL, *(name for name in names if name not in TITLES), RETRAIN]
        groups = {name: [row for row in mine if row["method"] == name] for name in ordered}
        lines += [f"## {case.name[:1].upper()}{case.name[1:]}", ""]
        lines += [*_table(groups, ACCURACIES), "", *_table(groups, COSTS), ""]
        methods = {name: group for name, group in groups.items() if name not in TITLES}
        lines += [*_table(methods, DISTANCES), ""]
        failures = [
            f"- {row['method']}, seed {row['seed']}: {row['failed']}" for row in mine if "failed" in row
        ]
        if failures:
            lines += ["Failed:", "", *failures, ""]
        left_out = [c.key for c in experiment.methods if not experiment.serves(c, case)]
        if left_out:
            lines += [
                f"Not in this table, because they refuse such a request: {', '.join(left_out)}.",
                "",
            ]
    lines += [
        "Mean ± standard deviation over seeds. Δ: mean distance to Retrain of the same seed, in points. Gain: "
        "Retrain's cost over the method's, unlearning and recovery together. Recovery ends at Retrain's test "
        "score. Attacks: the share of the forgotten examples called members. Bytes are payload in both "
        "directions, seconds those of exchanges with clients one after the other, both measured; FLOPs are those "
        "of the closed formulas (Retrain's and Original's: examples times FLOPs of one). Kept: before the request, "
        "beside the model.",
        "",
    ]
    if experiment.published is not None:
        lines += [
            f"## Published, for comparison\n\n{experiment.published.source}\n",
            "| method | " + " | ".join(experiment.published.columns) + " |",
            "|---" * (1 + len(experiment.published.columns)) + "|",
        ]
        lines += [
            f"| {name} | " + " | ".join(str(value) for value in values) + " |"
            for name, values in experiment.published.rows.items()
        ]
        lines.append("")
    return "\n".join([*lines, *_facts(circumstances)]) + "\n"


def _facts(circumstances: Mapping[str, Any]) -> Iterable[str]:
    yield "## How it was made"
    yield ""
    yield f"    flower-unlearn bench {circumstances['experiment']}"
    yield ""
    for name, value in circumstances.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        yield f"- {name}: {value}"


def _table(groups: Mapping[str, Sequence[Row]], columns: Mapping[str, Value]) -> list[str]:
    retrain = groups.get(RETRAIN, ())
    lines = ["| method | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for name, group in groups.items():
        cells = [TITLES.get(name, name)]
        for title, value_of in columns.items():
            cells.append(_cell(title, value_of, name, group, retrain))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _cell(title: str, value_of: Value, name: str, group: Sequence[Row], retrain: Sequence[Row]) -> str:
    known = {row["seed"]: value for row in group if (value := value_of(row)) is not None}
    if not known:
        return "–"
    values = list(known.values())
    if not all(map(math.isfinite, values)):
        return "not finite"
    mean = statistics.fmean(values)
    text = _number(mean, title)
    if len(values) > 1 and "bytes" not in title and "FLOPs" not in title:
        text += f" ± {_number(statistics.stdev(values), title)}"
    reference = {row["seed"]: value for row in retrain if (value := value_of(row)) is not None}
    both = sorted(known.keys() & reference.keys())
    if name != RETRAIN and both and "(Δ)" in title:
        gap = statistics.fmean(abs(known[seed] - reference[seed]) for seed in both)
        text += f" ({gap:.1f})"
    if name not in TITLES and both and "(gain)" in title and mean:
        text += f" ({statistics.fmean(reference[seed] for seed in both) / mean:.1f}×)"
    return text


def _number(value: float, title: str) -> str:
    if "%" in title:
        return f"{value:.1f}"
    if "rounds" in title or "seconds" in title:
        return f"{value:.1f}"
    return "0" if value == 0 else f"{value:.3g}"


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
