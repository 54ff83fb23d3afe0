"""The page of `decentralised`: the paper's tables with its figures beside ours, and two drawings like its figures."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws into a file, without a screen
import matplotlib.pyplot as plt

from benchmarks.decentralised.federation import (
    ALPHA,
    CLASS,
    EDGE_PROBABILITY,
    SEQUENCE_LENGTH,
    SEQUENCE_SHARE,
    SHARE,
    Experiment,
)
from benchmarks.decentralised.published import PUBLISHED, TABLES, TIME_SAVED
from benchmarks.decentralised.runs import DRAWN_ROUNDS
from benchmarks.tables import Row, grouped, table

Rows = Sequence[Row]

LEVELS = {"sample": "Samples", "class": "Class 0", "client": "Client"}
_KEYS = ("topology", "dataset", "method")


def document(rows: Rows, experiments: Iterable[Experiment], provenance: str) -> list[str]:
    """Return the lines of the whole page, of all rows that there are."""
    lines = ["# Decentralised deletions beside retraining", "", *_introduction(), ""]
    lines += [f"- {_describe(one)}" for one in experiments if _of(rows, dataset=one.dataset)]
    for (partition, level), (title, what) in TABLES.items():
        lines += _table(f"{title}: {what}", _of(rows, partition=partition, case=level))
    for partition, what in (("iid", "IID"), ("dirichlet", f"Dirichlet {ALPHA}")):
        lines += _table(f"A whole client, {what}", _of(rows, partition=partition, case="client"), paper=False)
    lines += _sequence(_of(rows, case="sequence"))
    lines += _seconds(rows)
    lines += _curvatures(rows)
    lines += ["", "## How it was made", "", f"{provenance}."]
    lines += ["Cases of these settings that an earlier run had finished were not computed again."]
    return lines


def drawing(rows: Rows, path: Path) -> bool:
    """Draw the paper's figures 1 and 2: accuracy over a sequence of requests, and seconds; False without rows."""
    sequence = _of(rows, case="sequence")
    datasets = list(dict.fromkeys(row["dataset"] for row in sequence))
    if not datasets:
        return False
    figure, axes = plt.subplots(1, len(datasets) + 1, figsize=(4.5 * (len(datasets) + 1), 3.6))
    for axis, dataset in zip(axes, datasets, strict=False):
        _draw_sequence(axis, _of(sequence, dataset=dataset))
        axis.set_title(f"{dataset}: {SEQUENCE_LENGTH} requests about samples", fontsize=10)
    _draw_seconds(axes[-1], rows)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return True


def _introduction() -> list[str]:
    return [
        "Ten peers on a ring or an Erdős–Rényi graph (edges with probability "
        f"{EDGE_PROBABILITY}), one epoch a round. Deleted: {SHARE:.0%} of everybody's samples, at random; class "
        f"{CLASS} everywhere; one client. RT: retrained from scratch on the rest, with the same rounds. DU: the "
        "corrections and one round of fine-tuning. PDUDT: the client's influence subtracted, and half as many rounds "
        "as training had. No noise. Mean ± standard deviation over seeds, which draw data, graph and what is deleted; "
        "without ±, one seed.",
        "",
        "*Paper*: Wu et al., Certified Unlearning in Decentralized Federated Learning, tables I to IV, as printed "
        "there. *Attack*: how often an attack on the confidence tells forgotten examples from as many test examples "
        "of the same classes, on examples it was not fitted to; 50 % is guessing. The paper says no more about its "
        "attack than that 50 % is guessing. *Called members*: the share of the forgotten examples that an attack "
        "fitted to retained and test examples takes for members; compare with RT. Test accuracy is on the whole test "
        "set, a forgotten class included. *Seconds*: processor seconds of all ten peers together, by turns in "
        "one process, without a network.",
        "",
        "What follows from it: [unlearning without a server]"
        "(../explanation-decentralised.md#what-is-promised-and-what-is-not).",
    ]


def _describe(experiment: Experiment) -> str:
    size = f"{experiment.max_examples:,}" if experiment.max_examples else "all"
    curvature = experiment.corrections
    return (
        f"{experiment.dataset}: {experiment.model}, {size} training examples, {experiment.rounds} rounds, batches of "
        f"{experiment.batch_size}, learning rate {experiment.learning_rate}; corrections by the "
        f"{curvature.curvature} damped by {curvature.damping:g}, for a client by the "
        f"{experiment.client_corrections.curvature} damped by {experiment.client_corrections.damping:g}."
    )


def _table(title: str, rows: Rows, *, paper: bool = True) -> list[str]:
    if not rows:
        return []
    columns = ["graph", "data", "method", "test acc. %", "attack %"]
    if paper:
        columns[4:] = ["paper's test acc. %", "attack %", "paper's attack %"]
    columns += ["called members %", "forgotten acc. %", "seconds", "of RT's"]
    lines: list[list[str]] = []
    for (topology, dataset, method), some in _group(rows, _KEYS):
        key = (some[0]["partition"], some[0]["case"], topology, dataset, method)
        theirs = PUBLISHED.get(key)
        retraining = _mean(_of(rows, topology=topology, dataset=dataset, method="RT"), "seconds")
        seconds = _mean(some, "seconds")
        cells = [topology, dataset, method, _figure(some, "test_accuracy"), _figure(some, "attack")]
        if paper:
            accuracy, attack = ("", "")
            if theirs is not None:
                accuracy, attack = (f"{theirs[at]:.2f} ± {theirs[at + 1]:.2f}" for at in (0, 2))
            cells[4:] = [accuracy, _figure(some, "attack"), attack]
        cells += [_figure(some, "called_members"), _figure(some, "forget_accuracy")]
        cells += ["", ""] if method == "before" else [f"{seconds:.1f}", f"{seconds / retraining:.2f}"]
        lines.append(cells)
    return ["", f"## {title}", "", *table(columns, lines)]


def _sequence(rows: Rows) -> list[str]:
    if not rows:
        return []
    lines = ["", f"## {SEQUENCE_LENGTH} requests one after the other (as figure 1: IID, ER)", ""]
    lines += [
        f"Every peer has {SEQUENCE_SHARE:.0%} of its samples deleted by {SEQUENCE_LENGTH} requests. RT starts anew "
        f"after each; DU fine-tunes for one round, measured here, and for the drawing for {DRAWN_ROUNDS - 1} more "
        "before the next request.",
        "",
    ]
    columns = ["data", "requests", "method", "test acc. %", "attack %", "called members %"]
    names = ("test_accuracy", "attack", "called_members", "forget_accuracy", "seconds")
    cells = (
        [dataset, request, method, *(_figure(some, name) for name in names)]
        for (dataset, request, method), some in _group(rows, ("dataset", "request", "method"))
    )
    return lines + table([*columns, "forgotten acc. %", "seconds"], cells)


def _seconds(rows: Rows) -> list[str]:
    """Return figure 2, from the rows of the tables."""
    picked = _of(rows, partition="iid", topology="ER")
    picked = [row for row in picked if row["case"] in LEVELS and row["method"] != "before"]
    if not picked:
        return []
    lines = ["", "## Seconds (as figure 2: IID, ER)", ""]
    lines += [f"The paper: DU takes about {TIME_SAVED:.0f} % less than RT, everywhere.", ""]
    cells: list[list[str]] = []
    for (dataset, level, method), some in _group(picked, ("dataset", "case", "method")):
        retraining = _mean(_of(picked, dataset=dataset, case=level, method="RT"), "seconds")
        seconds = _mean(some, "seconds")
        alone = f"{_mean(some, 'correction_seconds'):.1f}" if method == "DU" else ""
        saved = "" if method == "RT" else f"{100 * (1 - seconds / retraining):.0f}"
        cells.append([dataset, level, method, f"{seconds:.1f}", alone, saved])
    return lines + table(["data", "deleted", "method", "seconds", "corrections alone", "saved %"], cells)


def _curvatures(rows: Rows) -> list[str]:
    compared = _of(rows, case="curvature")
    if not compared:
        return []
    lines = ["", "## What the curvature and its damping decide", ""]
    lines += [
        "IID, ring, one seed. The correction divides by the peer's own curvature plus the damping. "
        "*Corrected*: test accuracy before the round of fine-tuning (on 2,000 test examples).",
        "",
    ]
    columns = ["data", "deleted", "curvature", "damping", "corrected %", "test acc. %", "forgotten acc. %"]
    names = ("corrected_accuracy", "test_accuracy", "forget_accuracy", "called_members", "seconds")
    cells = (
        [
            row["dataset"],
            row["deleted"],
            row["curvature"],
            f"{row['damping']:g}",
            *(f"{row[name]:.1f}" for name in names),
        ]
        for row in compared
    )
    return lines + table([*columns, "called members %", "seconds"], cells)


def _draw_sequence(axis: Any, rows: Rows) -> None:
    """Draw the mean accuracy over seeds, round by round; DU's requests at the rounds at which RT starts anew."""
    num_rounds = len(_of(rows, method="RT")[0]["curve"])
    for request in range(1, SEQUENCE_LENGTH + 1):
        start = num_rounds * (request - 1)
        for method, colour in (("RT", "tab:grey"), ("DU", "tab:blue")):
            curves = [row["curve"] for row in _of(rows, method=method, request=request)]
            means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
            first = start + (1 if method == "RT" else 0)
            label = method if request == 1 else None
            axis.plot(range(first, first + len(means)), means, color=colour, label=label, marker=".")
        axis.axvline(start, color="tab:red", linewidth=0.8, linestyle=":")
    axis.set_xlabel("rounds after training (dotted: a request)")
    axis.set_ylabel("test accuracy, %")
    axis.legend()


def _draw_seconds(axis: Any, rows: Rows) -> None:
    """Draw bars, logarithmic as in the paper."""
    picked = [row for row in _of(rows, partition="iid", topology="ER") if row["case"] in LEVELS]
    groups = list(dict.fromkeys((row["dataset"], row["case"]) for row in picked))
    for offset, (method, colour) in enumerate(
        (("RT", "tab:grey"), ("DU", "tab:blue"), ("PDUDT", "tab:orange"))
    ):
        found = [
            (at + 0.27 * (offset - 1), _mean(some, "seconds"))
            for at, (dataset, case) in enumerate(groups)
            if (some := _of(picked, dataset=dataset, case=case, method=method))
        ]
        axis.bar([x for x, _ in found], [y for _, y in found], width=0.25, color=colour, label=method)
    seconds = [row["seconds"] for row in picked if row["seconds"]]
    axis.set_yscale("log")
    axis.set_ylim(
        min(seconds, default=1) / 10, 5 * max(seconds, default=1)
    )  # bars need a foot, the legend room
    names = [f"{dataset}, {case}" for dataset, case in groups]
    axis.set_xticks(range(len(groups)), names, fontsize=7, rotation=30, ha="right")
    axis.set_ylabel("processor seconds")
    axis.set_title("Time for a deletion", fontsize=10)
    axis.legend()


def _of(rows: Rows, **wanted: object) -> list[Row]:
    """Return the rows that carry these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def _group(rows: Rows, names: Sequence[str]) -> list[tuple[tuple[Any, ...], list[Row]]]:
    """Return rows of equal values under `names`, which are the seeds', in the order of first appearance but
    for the last.
    """
    groups = grouped(rows, names)
    order = list(dict.fromkeys(key[:-1] for key in groups))
    return sorted(groups.items(), key=lambda group: order.index(group[0][:-1]))


def _mean(rows: Rows, name: str) -> float:
    return statistics.fmean(row[name] for row in rows)


def _figure(rows: Rows, name: str) -> str:
    """Return mean ± standard deviation; the value alone where there is one."""
    values = [row[name] for row in rows]
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"
