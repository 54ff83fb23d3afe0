"""What deletions reveal to those who hold the model before and the model after.

    python -m benchmarks.difference --data-dir DATA --output docs/results/difference-attacks

Five clients with 120 examples each, unevenly mixed (Dirichlet 0.5), eight rounds, three of recovery; an MLP, and for
hf-online and exact-ridge a linear layer. Digits, where nothing else is said. *AUC*: how well the rise of the loss from
one model to the other tells forgotten records from test records, with its 95 % interval; 0.5 is guessing. Of a client
the test records are weighted to its mix of classes, as in reports. *Class named*: how many % of the forgotten records
are of the class whose predictions on test data fall most, beside those of their most frequent class. *Record off*: of
what the change of the first dense layer gives away in closed form, the distance to the nearest forgotten record over
its length; 1 is a guess of zeros. Twenty records in all go, one, five or twenty together.

Ridge heads: ten clients, 5,000 pictures; the attacker knows the sums of products of all inputs, or 1,000 pictures of
the test set. Pictures: one record deleted alone. A step: the gradient of one record in a small CNN, inverted by L-BFGS.

Rows that OUTPUT.json has are not measured again, and the section "In short" of the page, which people wrote, stays.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import track

from benchmarks.data import sites_and_test
from benchmarks.difference.class_shares import shares_by_predictions
from benchmarks.difference.federations import (
    CLIENT,
    LINEAR,
    error,
    federation,
    flat,
    forget,
    posteriors,
    records,
    rises,
    samples,
    settings_for,
)
from benchmarks.difference.pictures import PICTURES, draw, heads, inverted
from benchmarks.tables import Row, provenance, table, write
from unlearning.errors import FlowerUnlearningError
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Target
from unlearning.tasks.task import Examples
from unlearning.verification.attack_result import rank_against
from unlearning.verification.auc_interval import beaten
from unlearning.verification.discrimination import discriminate
from unlearning.verification.figures import AttackFigure, Estimate

FIVE = ("retrain", "puf-special", "gradient-ascent", "newton-cg", "exact-ridge")
TOGETHER = (1, 5, 20)
DIGITS = "digits"
LARGER = ("fashion-mnist", "cifar10-features")
"""Data sets that are read from files."""
NUM_DELETED = 20
READING = "## In short"
Measure = Callable[[], Any]


def main(
    output: Annotated[Path, typer.Option(help="Page, picture and figures, without the ending.")],
    data_dir: Annotated[str, typer.Option(help="Where the data sets lie; empty: digits only.")] = "",
) -> None:
    """Measure what is not measured yet, and write the page."""
    file = output.with_name(output.name + ".json")
    known: dict[str, Any] = json.loads(file.read_text())["rows"] if file.exists() else {}
    parts = dict(_parts(data_dir))
    for name in track([name for name in parts if name not in known], description="measuring"):
        known[name] = parts[name]()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"provenance": provenance(), "rows": known}))
    rows = {name: known[name] for name in parts}
    has_pictures = draw(rows, output.with_suffix(".png"))
    lines = [*_page(rows, _reading(output.with_suffix(".md"))), *_picture(output, has_pictures)]
    write(output, lines, {"rows": {name: _without_pixels(row) for name, row in rows.items()}})


def _without_pixels(row: Row) -> Row:
    """Return a part's figures without the pictures, which the PNG shows."""
    return {key: value for key, value in row.items() if key != "shown"}


def _parts(data_dir: str) -> Iterator[tuple[str, Measure]]:
    """Yield the name of each part, and what measures it."""
    for method in FIVE:
        for count in TOGETHER:
            yield f"samples {method} {count}", partial(_samples, method, count)
    yield "guess", _guess
    yield "ridge digits", partial(heads, DIGITS, data_dir)
    if data_dir:
        for name in LARGER:
            yield f"ridge {name}", partial(heads, name, data_dir)
        yield "step", partial(inverted, data_dir)
    for method in METHODS:
        yield f"client {method}", partial(_client, method)
    for dataset in LARGER if data_dir else ():
        for method in METHODS:
            yield f"client {method} {dataset}", partial(_client, method, dataset, data_dir)


def _client(method: str, dataset: str = DIGITS, data_dir: str = "") -> Row:
    """Measure the deletion of a client."""
    given = federation(method, dataset, data_dir)
    forgotten = given.sites[CLIENT]
    try:
        done, recovered = forget(given, method, Target(Granularity.CLIENT, CLIENT))
    except FlowerUnlearningError as exc:
        return {"failed": str(exc)}
    row: Row = {"model": "linear" if method in LINEAR else "MLP"}
    labels, before = (
        forgotten.targets.numpy(),
        posteriors(given, given.learnt.parameters, given.test),
    )
    for name, model in (("unlearned", done.parameters), ("recovered", recovered)):
        sides = [(rises(given, model, one), one.targets.numpy()) for one in (forgotten, given.test)]
        found = rank_against(sides[0], sides[1], 0, AttackFigure()).auc
        assert found is not None, "the test data have every class"
        shares = shares_by_predictions(before, posteriors(given, model, given.test))
        row[name] = {"auc": _plain(found), "named": float(np.mean(labels == shares.argmax()))}
    row["most frequent"] = float(np.bincount(labels).max() / len(labels))
    return row


def _samples(method: str, together: int) -> Row:
    """Measure deletions of `NUM_DELETED` records of a client, `together` at once, each from the same model."""
    given = federation(method)
    chosen = _chosen(given.sites[CLIENT])
    mine: dict[str, list[Any]] = {"unlearned": [], "recovered": []}
    theirs: dict[str, list[Any]] = {"unlearned": [], "recovered": []}
    errors: dict[str, dict[str, list[float]]] = {"unlearned": {}, "recovered": {}}
    for start in range(0, NUM_DELETED, together):
        forgotten = given.sites[CLIENT].select(chosen[start : start + together])
        done, recovered = forget(given, method, samples(forgotten))
        for name, model in (("unlearned", done.parameters), ("recovered", recovered)):
            ours, others = rises(given, model, forgotten), rises(given, model, given.test)
            # ranks among test records, for the changes of two deletions are not of one scale
            mine[name].append(beaten(ours, others, np.ones(len(others))))
            theirs[name].append(beaten(others, others, np.ones(len(others))))
            for known, found in records(given, method, model).items():
                errors[name].setdefault(known, []).append(error(found, forgotten))
    row: Row = {}
    for name in mine:
        told = discriminate(np.concatenate(mine[name]), np.concatenate(theirs[name]), seed=0)
        medians = {known: float(np.median(values)) for known, values in errors[name].items()}
        row[name] = {"auc": _plain(told.auc), "errors": medians}
    return row


def _guess() -> Row:
    """Measure how far the mean test picture is off, for each number of records together."""
    sites, test = sites_and_test(settings_for("retrain"))
    mean, chosen = flat(test).mean(axis=0), _chosen(sites[CLIENT])
    mine = flat(sites[CLIENT].select(chosen))
    errors = np.linalg.norm(mine - mean, axis=1) / np.linalg.norm(mine, axis=1)
    return {str(count): float(np.median(errors.reshape(-1, count).min(axis=1))) for count in TOGETHER}


def _chosen(examples: Examples) -> NDArray[np.intp]:
    """Return which of a client's examples are deleted."""
    return np.random.default_rng(0).permutation(len(examples))[:NUM_DELETED]


def _plain(estimate: Estimate) -> list[float]:
    return [estimate.value, estimate.low, estimate.high]


def _auc(found: list[float]) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*found)


def _reading(page: Path) -> str:
    """Return the section that people wrote of the figures; empty where there is no page yet."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return text.partition(READING)[2].partition("\n## ")[0].strip()


def _page(rows: dict[str, Any], reading: str) -> Iterator[str]:
    yield "# What deletions reveal"
    yield ""
    yield from (__doc__ or "").strip().split("\n")[2:]
    yield from ["", READING, "", reading]
    yield ""
    heads_ = [
        "method",
        "model",
        "AUC unlearned",
        "AUC recovered",
        "class named, unlearned",
        "recovered",
        "most frequent",
    ]
    for dataset in (DIGITS, *LARGER):
        found = dict(_clients(rows, dataset))
        if found:
            lines = table(heads_, _client_rows(found))
            yield from [f"## Every method, a client: {dataset}", "", *lines, "", *_refusals(found)]
    yield "## One, five and twenty records together"
    yield ""
    heads_ = [
        "method",
        "together",
        "AUC unlearned",
        "AUC recovered",
        "record off, unlearned",
        "record off, recovered",
    ]
    yield from table(heads_, _sample_rows(rows))
    yield ""
    yield "## Ridge heads"
    yield ""
    heads_ = [
        "data",
        "model",
        "records together",
        "record off, knowing the sums",
        "knowing similar data",
        "class right",
    ]
    cells = (
        [
            name.split()[1],
            line["dtype"],
            line["together"],
            f"{line['sums']:.2g}",
            f"{line['similar']:.2g}",
            line["classes"],
        ]
        for name, lines in rows.items()
        if name.startswith("ridge")
        for line in lines["lines"]
    )
    yield from table(heads_, cells)


def _clients(rows: dict[str, Any], dataset: str) -> Iterator[tuple[str, Row]]:
    """Yield each method with its row of a data set; the names of digits' rows do not have it."""
    for name, row in rows.items():
        kind, *rest = name.split(" ")
        if kind == "client" and (*rest, DIGITS)[1] == dataset:
            yield rest[0], row


def _refusals(found: dict[str, Row]) -> Iterator[str]:
    refused = [f"- `{method}`: {row['failed']}" for method, row in found.items() if "failed" in row]
    yield from ["Refused:", "", *refused, ""] if refused else []


def _client_rows(found: dict[str, Row]) -> Iterator[list[object]]:
    for method, row in found.items():
        if "failed" in row:
            continue
        now, later = row["unlearned"], row["recovered"]
        classes = [f"{100 * value:.0f} %" for value in (now["named"], later["named"], row["most frequent"])]
        yield [method, row["model"], _auc(now["auc"]), _auc(later["auc"]), *classes]


def _sample_rows(rows: dict[str, Any]) -> Iterator[list[object]]:
    for name, row in rows.items():
        kind, *rest = name.split()
        if kind == "samples":
            method, together = rest
            stages = [row[stage] for stage in ("unlearned", "recovered")]
            yield [method, together, *(_auc(one["auc"]) for one in stages), *map(_errors, stages)]
    for together, value in rows.get("guess", {}).items():
        yield ["*the mean test picture*", together, "–", "–", f"{value:.2g}", f"{value:.2g}"]


def _errors(stage: Row) -> str:
    return "; ".join(f"{value:.2g} ({known})" for known, value in stage["errors"].items())


def _picture(output: Path, exists: bool) -> list[str]:
    if not exists:
        return []
    return ["", f"![{PICTURES}]({output.name}.png)", "", f"{PICTURES}."]


if __name__ == "__main__":
    typer.run(main)
