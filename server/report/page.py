"""The report as one self-contained page for a data-protection officer: no scripts, nothing to load.

Every text goes through the template's escaping; the only markup let through is that of our own plots.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from server.report import words
from server.report.data import ReportData
from server.report.plots import attack_plot, cost_plot, score_plot
from server.report.template import TEMPLATE
from unlearning.deadlines import Ground
from unlearning.verification.measurement import CONFIDENCE, CONFIDENCE_POWER, YEOM, Measurement, SetMeasure

GLOSSARY = (
    ("Federation", "several data owners who train one model together without handing out their data."),
    ("Client", "one data owner's computer in the federation."),
    ("Round", "one exchange: the server sends the model, clients train on their own data and answer."),
    ("Unlearning", "the rounds that take the influence of the forgotten data out of the model."),
    ("Recovery", "ordinary rounds without the forgotten data, to win back what unlearning cost the model."),
    ("Forgotten data", "the examples that the request names; they never train again."),
    ("Retained data", "what the other clients, and this client otherwise, go on training with."),
    ("Test data", "examples held out from training, which the model has never learnt from."),
    ("Accuracy", "the share of examples whose class the model gets right."),
    ("Dice", "the overlap of predicted and true region, from 0 (none) to 100 % (equal)."),
    ("Loss", "how wrong the model is on average; lower is better, 0 is perfect."),
    ("Most memory", "what the program held at once at its fullest, all that it needs to run included."),
    (
        "Membership attack",
        "a test that guesses from the model's behaviour whether an example was trained on.",
    ),
    (
        "Loss attack (Yeom)",
        "calls an example a member if its loss is at most the mean loss of retained data.",
    ),
    ("Confidence attack", "learns from retained and test examples how sure the model is of members."),
    (
        "AUC",
        "how often an attack ranks a forgotten example above a test example; 0.5 is guessing, 1 is always.",
    ),
    (
        "True positives at 1 %",
        "forgotten examples found while 1 % of the test examples are taken for members.",
    ),
    ("95 % interval", "where the figure would lie in 95 of 100 repetitions with other examples."),
    ("Balanced accuracy", "how often an attack is right where the truth is known; 50 % is guessing."),
    ("Model hash", "a fingerprint (SHA-256) of all the model's numbers; another model, another fingerprint."),
)

Reading: TypeAlias = Callable[[Measurement], float | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a quantity before, after unlearning and after recovery."""

    label: str
    values: tuple[str, ...]
    starts_group: bool = False


def render_page(data: ReportData) -> str:
    """Return the whole page as HTML text; equal reports give equal pages."""
    plots = {"scores": score_plot(data), "attacks": attack_plot(data), "costs": cost_plot(data)}
    return _template().render(
        data=data,
        asked=words.describe_request(data),
        done=list(words.describe_unlearning(data)),
        measured=list(words.describe_measurements(data)),
        verdict=data.verdict(),
        attacks=_attacks(data),
        tiles=_tiles(data),
        rows=_rows(data),
        rounds=_rounds(data),
        facts=_facts(data),
        gaps=words.gaps(data),
        findings=[(name, words.format_finding(value)) for name, value in data.unlearning.findings.items()],
        # our own plots; any text in them was escaped by the plotting library
        plots={name: Markup(svg) for name, svg in plots.items()},
        glossary=GLOSSARY,
        missing=words.MISSING,
    )


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        size=words.size,
        memory=words.memory,
        duration=words.duration,
        moment=words.moment,
        share=words.share,
        count=words.count,
        flops=words.flops,
        number=words.number,
    )
    return environment.from_string(TEMPLATE)


def _tiles(data: ReportData) -> list[dict[str, str]]:
    """Return the three numbers that readers look for, each with the one before."""
    before, after = data.first("before"), words.final(data)
    score = data.federation.score_name
    readings: dict[str, Reading] = {
        f"{score} on test data": lambda item: _score(item.test),
        f"{score} on the forgotten data": lambda item: _score(item.forgotten),
        "forgotten examples the loss attack calls members": lambda item: item.attacks.get(YEOM),
        "forgotten examples the confidence attack calls members": lambda item: item.attacks.get(CONFIDENCE),
    }
    return [
        {
            "label": label,
            "before": words.share(None if before is None else read(before)),
            "after": words.share(None if after is None else read(after)),
        }
        for label, read in readings.items()
    ]


def _rows(data: ReportData) -> list[Row]:
    columns = (data.first("before"), data.first("unlearned"), data.last("recovery"))
    score = data.federation.score_name.capitalize()
    rows: list[Row] = []
    for name in ("test", "retained", "forgotten"):
        sets = [None if item is None else getattr(item, name) for item in columns]
        rows.append(Row(f"{score}, {name} data", tuple(words.share(_score(one)) for one in sets), True))
        rows.append(Row(f"Loss, {name} data", tuple(words.number(_loss(one)) for one in sets)))
        rows.append(Row(f"Examples, {name} data", tuple(_examples(one) for one in sets)))
    for index, (key, label) in enumerate(
        (
            (YEOM, "Loss attack (Yeom): forgotten examples called members"),
            (CONFIDENCE, "Confidence attack: forgotten examples called members"),
            (CONFIDENCE_POWER, "Confidence attack: its own balanced accuracy"),
        )
    ):
        shares = [None if item is None else item.attacks.get(key) for item in columns]
        rows.append(Row(label, tuple(words.share(value) for value in shares), index == 0))
    return rows


def _rounds(data: ReportData) -> list[dict[str, str]]:
    """Return every measurement, one line each."""
    return [
        {
            "stage": words.STAGE_NAMES[item.stage],
            "round": str(item.round),
            "test": words.share(_score(item.test)),
            "retained": words.share(_score(item.retained)),
            "forgotten": words.share(_score(item.forgotten)),
            "yeom": words.share(item.attacks.get(YEOM)),
            "confidence": words.share(item.attacks.get(CONFIDENCE)),
        }
        for item in data.measurements
    ]


def _attacks(data: ReportData) -> list[dict[str, str]]:
    """Return two lines for each attack that ran: before the deletion and on the final model."""
    stages = (("before", data.first("before")), ("after", words.final(data)))
    lines = []
    for name, label in words.FIGURE_NAMES.items():
        for stage, item in stages:
            figure = item.figures.get(name) if item is not None else None
            if figure is None:
                continue
            rate = words.interval(figure.tpr, as_share=True) if figure.tpr else figure.tpr_reason
            lines.append(
                {
                    "label": label,
                    "stage": stage,
                    "called": words.interval(figure.called, as_share=True),
                    "power": words.NO_FIGURE
                    if figure.balanced_accuracy is None
                    else words.share(figure.balanced_accuracy),
                    "auc": words.interval(figure.auc, as_share=False),
                    "tpr": rate or words.NO_FIGURE,
                }
            )
    return lines


def _facts(data: ReportData) -> list[tuple[str, str]]:
    request, federation, recovery = data.request, data.federation, data.recovery
    target = recovery.target_score
    facts = [
        ("Request", request.id),
        ("Asked for", request.target),
        ("Level", request.granularity),
        ("Client", request.client_id or ""),
        ("Samples named", "" if request.num_samples is None else f"{request.num_samples:,}"),
        ("Class", "" if request.class_label is None else str(request.class_label)),
        ("Submitted by", request.submitted_by),
        ("Submitted at", words.moment(request.created_at)),
        ("Received on", request.received_on),
        ("Due on", words.deadline(request.due_on, request.extended_days)),
        ("Ground", "" if request.ground is None else Ground(request.ground).describe()),
        ("Method", request.method_title or request.method),
        ("Source of the method", request.method_source),
        ("Parameters", _pairs(request.parameters) or "the method's defaults"),
        ("Federation", federation.name),
        ("Task", federation.task),
        ("Clients known", _listing(federation.clients_known)),
        ("Clients retained", _listing(federation.clients_retained)),
        ("Took part in unlearning", _listing(data.unlearning.participants)),
        ("Recovery stops when", data.stop_rule),
        ("Recovery's target", "" if target is None else words.share(target)),
        ("Excluded from now on", data.exclusions_note),
        ("Seeds", _pairs(data.seeds)),
        ("Software", _pairs(data.software, " ")),
    ]
    return [(name, text) for name, text in facts if text]


def _pairs(values: Mapping[str, Any], between: str = " = ") -> str:
    return ", ".join(f"{name}{between}{value}" for name, value in sorted(values.items()))


def _listing(clients: tuple[str, ...], limit: int = 30) -> str:
    if not clients:
        return "none"
    shown = ", ".join(clients[:limit])
    more = f" and {len(clients) - limit:,} more" if len(clients) > limit else ""
    return f"{len(clients):,}: {shown}{more}"


def _score(measure: SetMeasure | None) -> float | None:
    return None if measure is None else measure.score


def _loss(measure: SetMeasure | None) -> float | None:
    return None if measure is None else measure.loss


def _examples(measure: SetMeasure | None) -> str:
    return words.MISSING if measure is None else f"{measure.num_examples:,}"
