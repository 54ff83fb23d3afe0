"""The columns of the tables: what a row says, in which unit, and how it is set beside Retrain."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from unlearning.verification.figures import Construction

Row: TypeAlias = dict[str, Any]
"""One case of one method and seed, as JSON."""

ORIGINAL, RETRAIN = "original", "retrain"
_OWN_RETRAIN = "retrain, by "


def own_retrain(method: str) -> str:
    """Return the name of the row of a retraining of the method's own kind."""
    return f"{_OWN_RETRAIN}{method}"


def is_retrain(name: str) -> bool:
    """Return whether a row of this name is a retraining, which others are compared with."""
    return name == RETRAIN or name.startswith(_OWN_RETRAIN)


def retrain_for(method: str, groups: Mapping[str, Sequence[Row]]) -> Sequence[Row]:
    """Return the rows that those of a method are compared with: its own kind of retraining, if there is one."""
    return groups.get(own_retrain(method)) or groups.get(RETRAIN, ())


_ROUNDING = 1e-12
"""A spread of so small a share of the mean is that of sums in float64."""


class Beside(StrEnum):
    """How a figure is set beside Retrain's."""

    DISTANCE = "distance"
    GAIN = "gain"
    NOTHING = "nothing"


class Unit(StrEnum):
    """How a figure is written."""

    PERCENT = "percent"
    ONE_DECIMAL = "one decimal"
    SIGNIFICANT = "significant"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    value: the figure of a row; None where the row has none.
    has_spread: whether the standard deviation over seeds says something; costs by formula hardly vary.
    """

    title: str
    value: Callable[[Row], float | None]
    unit: Unit = Unit.SIGNIFICANT
    beside: Beside = Beside.NOTHING
    has_spread: bool = True

    @property
    def heading(self) -> str:
        """Its title with the unit and what stands in brackets."""
        sign = {Beside.DISTANCE: " (Δ)", Beside.GAIN: " (×)", Beside.NOTHING: ""}[self.beside]
        return f"{self.title}{' %' if self.unit is Unit.PERCENT else ''}{sign}"

    def cell(self, method: str, rows: Sequence[Row], retrained: Sequence[Row]) -> str:
        """Return mean ± standard deviation over seeds, and (Δ ± its deviation) or (gain×) where it means something."""
        known = self._known(rows)
        if not known:
            return "–"
        if not all(map(math.isfinite, known.values())):
            return "not finite"
        mean, reference = statistics.fmean(known.values()), self._known(retrained)
        both = sorted(known.keys() & reference.keys())
        if self.beside is Beside.DISTANCE and both and not is_retrain(method):
            distances = [abs(known[seed] - reference[seed]) for seed in both]
            return f"{self._written(mean)} ({self._spread(distances)})"
        text = self._spread([*known.values()]) if self.has_spread else self._written(mean)
        if self.beside is Beside.GAIN and both and method != ORIGINAL and not is_retrain(method) and mean:
            text += f" ({statistics.fmean(reference[seed] for seed in both) / mean:.3g}×)"
        return text

    def _known(self, rows: Sequence[Row]) -> dict[int, float]:
        scale = 100 if self.unit is Unit.PERCENT else 1
        return {
            row["seed"]: scale * value
            for row in rows
            if "failed" not in row and (value := self.value(row)) is not None
        }

    def _spread(self, values: Sequence[float]) -> str:
        mean = statistics.fmean(values)
        if len(values) < 2:
            return self._written(mean)
        spread = statistics.stdev(values)
        return f"{self._written(mean)} ± {self._written(spread if spread > _ROUNDING * abs(mean) else 0)}"

    def _written(self, value: float) -> str:
        if self.unit is Unit.SIGNIFICANT:
            return "0" if value == 0 else f"{value:.3g}"
        return f"{value:.1f}"


def _of(key: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(key)


def _positive(key: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(key) or None  # 0: it could not be counted


def _share(attack: str) -> Callable[[Row], float | None]:
    return lambda row: row["attacks"].get(attack)


def _auc(attack: str, key: str = "figures") -> Callable[[Row], float | None]:
    def value(row: Row) -> float | None:
        estimate = (row.get(key, {}).get(attack) or {}).get("auc")
        return None if estimate is None else estimate["value"]

    return value


def _of_many(title: str, key: str, unit: Unit = Unit.SIGNIFICANT) -> Column:
    """Return a column of a figure that all seeds have in common, for it is of their models together."""
    return Column(
        title, lambda row: (row.get("oracles") or row.get("shadows") or {}).get(key), unit, has_spread=False
    )


def _percent(title: str, value: Callable[[Row], float | None]) -> Column:
    return Column(title, value, Unit.PERCENT, Beside.DISTANCE)


def _cost(title: str, value: Callable[[Row], float | None], *, has_spread: bool = False) -> Column:
    return Column(title, value, Unit.SIGNIFICANT, Beside.GAIN, has_spread)


COLUMNS: Mapping[str, Column] = {
    "test": _percent("test", _of("test")),
    "retained": _percent("retained", _of("retained")),
    "forget": _percent("forget", _of("forget")),
    "confidence": _percent("confidence attack", _share("confidence")),
    "yeom": _percent("Yeom", _share("yeom")),
    "backdoor": _percent("backdoor succeeds", _of("backdoor")),
    "forget-loss": Column("forget loss", _of("forget_loss"), beside=Beside.DISTANCE),
    "recovery": Column("recovery rounds", _of("recovery_rounds"), Unit.ONE_DECIMAL),
    "bytes": _cost("bytes", _positive("bytes")),
    "flops": _cost("FLOPs", _positive("flops")),
    "seconds": _cost("seconds", _of("seconds"), has_spread=True),
    "storage": _cost("storage, bytes", _of("storage")),
    "server-bytes": Column("of it kept by the server", _of("server_bytes"), has_spread=False),
    "client-bytes": Column("of it kept by the clients", _of("client_bytes"), has_spread=False),
    "peak-memory": _cost("peak memory, bytes", _positive("peak_memory")),
    "gap": Column("parameter gap", _of("parameter_gap")),
    "moved": Column("moved, of ‖θ‖", _of("moved")),
    "kl": Column("KL", _of("kl")),
    "logit-mse": Column("logit MSE", _of("logit_mse")),
    "agreement": Column("same predictions", _of("agreement"), Unit.PERCENT),
    "cf": Column("causal faithfulness", _of("causal_faithfulness")),
    "pearson": Column("loss change, Pearson", _of("pearson")),
    "spearman": Column("loss change, Spearman", _of("spearman")),
    "forget-unlearned": Column("forget, before recovery", _of("forget_unlearned"), Unit.PERCENT),
    "test-unlearned": Column("test, before recovery", _of("test_unlearned"), Unit.PERCENT),
    **{
        f"klom-{name}{suffix}": _of_many(f"KLoM, {name}, {what}", f"klom-{name}{suffix}")
        for name in ("forget", "retained", "test")
        for suffix, what in (("", "95th percentile"), ("-mean", "mean"))
    },
    "u-lira": _of_many("U-LiRA, balanced accuracy", "u-lira", Unit.PERCENT),
    "u-lira-tpr": _of_many("U-LiRA, TPR at 1 % FPR,", "u-lira-tpr", Unit.PERCENT),
    "u-lira-vulnerable": _of_many("U-LiRA, the most vulnerable,", "u-lira-vulnerable", Unit.PERCENT),
    "u-lira-protected": _of_many("U-LiRA, the least vulnerable,", "u-lira-protected", Unit.PERCENT),
    "u-lira-centred": _of_many("U-LiRA without the shift, balanced accuracy", "u-lira-centred", Unit.PERCENT),
    "u-lira-centred-tpr": _of_many(
        "U-LiRA without the shift, TPR at 1 % FPR,", "u-lira-centred-tpr", Unit.PERCENT
    ),
    "shift": _of_many("shift of test margins", "shift"),
    "num-unlearned": _of_many("models", "unlearned"),
    "num-oracles": _of_many("oracles", "oracles"),
    "num-shadows": _of_many("shadow federations", "shadows"),
    "relearn-loss": Column("rounds to relearn the loss", _of("relearn_loss"), Unit.ONE_DECIMAL),
    "relearn-score": Column("rounds to relearn the score", _of("relearn_score"), Unit.ONE_DECIMAL),
    "noise": Column("planted noise, mean score", _of("noise")),
    "noise-z": Column("planted noise, z", _of("noise_z")),
    "noise-tpr": Column("planted noise, TPR at 1 % FPR,", _of("noise_tpr"), Unit.PERCENT),
    "auc-confidence": Column("AUC, confidence", _auc("confidence-threshold"), beside=Beside.DISTANCE),
    "auc-yeom": Column("AUC, loss", _auc("yeom"), beside=Beside.DISTANCE),
    "auc-mia-u": Column("AUC, MIA-U, distance", _auc("mia-u-euclidean")),
    **{
        f"auc-mia-u-{name}": Column(f"AUC, MIA-U, {name} learnt", _auc(f"mia-u-learnt-{name}"))
        for name in map(str, Construction)
    },
}

ACCURACIES = ("test", "retained", "forget", "confidence", "yeom")
COSTS = (
    "recovery",
    "bytes",
    "flops",
    "seconds",
    "storage",
    "server-bytes",
    "client-bytes",
    "peak-memory",
)
DISTANCES = (
    "gap",
    "kl",
    "logit-mse",
    "agreement",
    "cf",
    "pearson",
    "spearman",
    "forget-unlearned",
    "test-unlearned",
    "relearn-loss",
    "relearn-score",
)
BESIDE_ORACLES = tuple(
    name for name in COLUMNS if name.startswith(("klom-", "u-lira", "shift", "num-", "noise"))
)
ATTACKS = tuple(name for name in COLUMNS if name.startswith("auc-"))
TABLES = (ACCURACIES, COSTS, DISTANCES, ATTACKS, BESIDE_ORACLES)
"""What an experiment prints that names no columns of its own."""
