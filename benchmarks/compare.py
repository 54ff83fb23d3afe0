"""Original, Natural, PUF-Special, PUF-Regular and Retrain in one table, from real runs.

    python benchmarks/compare.py --dataset fashion-mnist --model cnn --data-dir DATA --seeds 0 --seeds 1 \
        --output docs/results/fashion-mnist-cnn

The server and client code is the deployment's; the Grid runs the clients one after the other in this process.
For each seed: train the original federation, retrain one that never saw the target, then start each way of
forgetting from the original's checkpoint and recover until the retrained model's test accuracy is reached
(the paper's rule) or `--recovery-max-rounds` have passed. Bytes are payload bytes of both directions; seconds
are those of the exchanges (clients run one after the other), without measuring. A finished part is kept in
the work directory, so an interrupted comparison goes on where it stopped.
"""

import json
import platform
import shutil
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from subprocess import run as run_command
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

from client.app import app as client_app
from server.admission import admit
from server.app import open_driver, run_federation
from server.checkpoints import CheckpointStore
from server.driver import Driver
from server.live_loop import LiveLoop
from server.state import FederationState, Phase
from strategies.in_process_grid import InProcessGrid
from strategies.run_config import RunSettings
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.tasks import make_task
from unlearning.training import initial_parameters
from unlearning.verification.measurement import measure

METHODS = ("natural", "puf-special", "puf-regular")
ROWS = ("original", *METHODS, "retrain")
TITLES = {
    "original": "Original",
    "natural": "Natural",
    "puf-special": "PUF-Special",
    "puf-regular": "PUF-Regular",
    "retrain": "Retrain",
}

Row = dict[str, Any]
console = Console()


class Comparison:
    """One seed of the comparison, in a directory of its own."""

    def __init__(self, directory: Path, run_config: Mapping[str, Any], target: Target) -> None:
        self.directory = directory
        self.run_config = dict(run_config)
        self.target = target

    def settings(self, name: str, **changes: Any) -> RunSettings:
        """The settings of one part, whose memory is in a directory of its own."""
        values = {**self.run_config, "state-dir": str(self.directory / name), **changes}
        return RunSettings.from_run_config(values)

    def grid(self, settings: RunSettings) -> InProcessGrid:
        """Fresh virtual clients."""
        count = settings.num_clients
        nodes = [{"partition-id": k, "num-partitions": count, "client-id": str(k)} for k in range(count)]
        config = {name.replace("_", "-"): value for name, value in settings.model_dump().items()}
        return InProcessGrid(client_app, nodes, config)

    def row(self, name: str, target_score: float = 0.0) -> Row:
        """The row of one way, from the work directory if it is there already."""
        path = self.directory / f"{name}.json"
        if path.exists():
            row: Row = json.loads(path.read_text(encoding="utf-8"))
            return row
        console.log(f"{self.directory.name}: {TITLES[name]} …")
        row = self._trained(name) if name in ("original", "retrain") else self._forgotten(name, target_score)
        path.write_text(json.dumps(row, indent=2), encoding="utf-8")
        score, forget = row["test"], row["forget"]
        console.log(f"{self.directory.name}: {TITLES[name]}: test {score:.4f}, forget {forget:.4f}")
        return row

    def _trained(self, name: str) -> Row:
        settings = self.settings(name)
        store = CheckpointStore(self.directory / name / "checkpoints")
        if store.newest() is None and name == "retrain":
            start = initial_parameters(make_task(settings.task()), settings.seed)
            gone = Exclusions().including([self.target])
            store.save(FederationState(parameters=start, exclusions=gone), token=0)
        grid = self.grid(settings)
        state = run_federation(grid, settings, run_id=1)
        with open_driver(grid, settings, run_id=1) as driver:
            return {
                **self._measured(driver, state),
                **_costs(driver, kinds={"training"}),
                "recovery_rounds": None,
            }

    def _forgotten(self, name: str, target_score: float) -> Row:
        shutil.rmtree(self.directory / name, ignore_errors=True)
        original = CheckpointStore(self.directory / "original" / "checkpoints").newest()
        assert original is not None, "the original comes first"
        settings = self.settings(
            name,
            **{
                "recovery-target": target_score,
                "rounds": original.training_rounds,
                "measure-every-recovery-round": False,
            },
        )
        grid = self.grid(settings)
        with open_driver(grid, settings, run_id=1) as driver:
            if name == "natural":
                return self._natural(driver, original, target_score)
            driver.register_clients()
            request = admit(
                driver.ledger,
                self.target,
                method=name,
                parameters={},
                submitted_by="benchmark",
                idempotency_key=None,
                now=driver.now(),
            )
            state = LiveLoop(driver).run(replace(original, event_sequence=0))
            report = json.loads((driver.state_dir / "reports" / request.id / "report.json").read_text())
            unlearned = next(item for item in report["measurements"] if item["stage"] == "unlearned")
            return {
                **self._measured(driver, state),
                **_costs(driver, kinds={"unlearning", "recovery"}),
                "recovery_rounds": report["recovery"]["rounds"],
                "stop": report["recovery"]["stop_reason"],
                "test_unlearned": unlearned["test"]["score"],
                "forget_unlearned": unlearned["forgotten"]["score"],
            }

    def _natural(self, driver: Driver, original: FederationState, target_score: float) -> Row:
        """Recovery rounds only, at least one: the target is left out and nothing else happens."""
        state = replace(
            original, exclusions=original.exclusions.including([self.target]), phase=Phase.TRAINING
        )
        loop = LiveLoop(driver)
        driver.register_clients()
        rounds = 0
        while rounds < driver.settings.recovery_max_rounds:
            observed = driver.observe_test(state.parameters)
            if rounds and observed is not None and (observed.mean_score or 0.0) >= target_score:
                break
            driver.restrict(state)
            state = loop.train(state)
            rounds += 1
        return {
            **self._measured(driver, state),
            **_costs(driver, kinds={"training"}),
            "recovery_rounds": rounds,
        }

    def _measured(self, driver: Driver, state: FederationState) -> Row:
        driver.restrict(state)
        assert self.target.client_id is not None
        observed = driver.observe_all(state, state.parameters, {self.target.client_id: self.target.forget})
        measurement = measure(
            stage="recovery",
            round=state.round,
            test=observed.test,
            retained=observed.retained,
            forgotten=observed.forgotten.get(self.target.client_id),
            seed=driver.settings.seed,
        )
        assert measurement.test is not None
        assert measurement.forgotten is not None
        return {
            "test": measurement.test.score,
            "forget": measurement.forgotten.score,
            "yeom": measurement.attacks["yeom"],
            "confidence": measurement.attacks["confidence"],
            "confidence_power": measurement.attacks["confidence_balanced_accuracy"],
        }


def _costs(driver: Driver, kinds: Iterable[str]) -> Row:
    rounds = [record for record in driver.ledger.rounds(limit=100_000) if record.kind in set(kinds)]
    return {
        "bytes": sum(r.metrics["bytes_sent"] + r.metrics["bytes_received"] for r in rounds),
        "seconds": sum(r.metrics["seconds"] for r in rounds),
    }


def table(rows: Mapping[str, list[Row]]) -> str:
    """The comparison in the papers' layout: mean ± standard deviation over seeds, Δ to Retrain, × gain."""
    lines = [
        "| method | test acc. % | forget acc. % (Δ) | confidence attack % (Δ) | Yeom % (Δ) | recovery rounds "
        "| bytes (× gain) | seconds (× gain) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    retrain = rows["retrain"]
    for name in ROWS:
        own = rows[name]
        cells = [TITLES[name], _percent(own, "test")]
        for key in ("forget", "confidence", "yeom"):
            gaps = [abs(a[key] - b[key]) for a, b in zip(own, retrain, strict=True)]
            delta = f" ({100 * statistics.fmean(gaps):.1f})" if name != "retrain" else ""
            cells.append(_percent(own, key) + delta)
        if own[0]["recovery_rounds"] is None:
            cells.append("–")
        else:
            cells.append(f"{statistics.fmean(row['recovery_rounds'] for row in own):.1f}")
        for key, form in (("bytes", "{:.3g}"), ("seconds", "{:.3g}")):
            mean = statistics.fmean(row[key] for row in own)
            gain = statistics.fmean(row[key] for row in retrain) / mean if mean else float("nan")
            shown = form.format(mean) if mean else "0"
            cells.append(shown if name == "original" or not mean else f"{shown} ({gain:.1f}×)")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _percent(rows: list[Row], key: str) -> str:
    values = [100 * row[key] for row in rows]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.1f} ± {spread:.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def main(
    output: Annotated[Path, typer.Option(help="Where the table and the figures go, without suffix.")],
    work: Annotated[Path, typer.Option(help="Checkpoints and finished parts.")] = Path("runs/compare"),
    dataset: str = "digits",
    model: str = "logistic",
    data_dir: str = "",
    partition: str = "dirichlet",
    alpha: float = 0.5,
    clients: int = 10,
    target: str = "0",
    rounds: int = 20,
    seeds: list[int] = [0],  # noqa: B006 - typer reads the default from here
    max_examples: int = 0,
    learning_rate: float = 0.1,
    learning_rate_decay: float = 0.998,
    batch_size: int = 32,
    weight_decay: float = 1e-3,
    local_epochs: int = 1,
    recovery_max_rounds: int = 30,
) -> None:
    """Run the comparison and write OUTPUT.md and OUTPUT.json."""
    config = {
        "dataset": dataset,
        "model": model,
        "data-dir": data_dir,
        "partition": partition,
        "alpha": alpha,
        "num-clients": clients,
        "rounds": rounds,
        "max-examples": max_examples,
        "learning-rate": learning_rate,
        "learning-rate-decay": learning_rate_decay,
        "batch-size": batch_size,
        "local-epochs": local_epochs,
        "weight-decay": weight_decay,
        "recovery-max-rounds": recovery_max_rounds,
        "evaluate-every": 0,
        "wait-timeout-s": 1.0,
    }
    rows: dict[str, list[Row]] = {name: [] for name in ROWS}
    for seed in seeds:
        comparison = Comparison(
            work / f"{output.name}-seed-{seed}",
            {**config, "seed": seed},
            Target(Granularity.CLIENT, target),
        )
        comparison.directory.mkdir(parents=True, exist_ok=True)
        rows["original"].append(comparison.row("original"))
        rows["retrain"].append(comparison.row("retrain"))
        for name in METHODS:
            rows[name].append(comparison.row(name, rows["retrain"][-1]["test"]))
    shown = {name: value for name, value in config.items() if name != "data-dir"}
    facts = {
        "settings": shown,
        "seeds": seeds,
        "target": target,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}",
        "numpy": np.__version__,
        "commit": run_command(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(json.dumps({**facts, "rows": rows}, indent=2), encoding="utf-8")
    text = (
        f"# {dataset}, {model}: forgetting client {target} of {clients}\n\n{table(rows)}\n\n"
        "Mean ± standard deviation over seeds; Δ is the mean distance to Retrain of the same seed; the gain "
        "is Retrain's cost over the method's. Recovery ends at Retrain's test accuracy. Yeom and confidence "
        "attack: share of the forgotten examples called members.\n\n"
        + "".join(f"- {name}: {value}\n" for name, value in {**facts, **shown}.items() if name != "settings")
    )
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    console.print(text)


if __name__ == "__main__":
    typer.run(main)
