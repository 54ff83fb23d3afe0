"""The report as one self-contained page for a data-protection officer: no scripts, nothing to load.

Every text goes through the template's escaping; the only markup let through is that of our own plots.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from server.report import words
from server.report.data import ReportData
from server.report.plots import attack_plot, cost_plot, score_plot
from server.report.template import TEMPLATE
from unlearning.gdpr import Ground
from unlearning.verification.attack_result import AttackFigure
from unlearning.verification.measurement import Measurement
from unlearning.verification.standard_attacks import CONFIDENCE, YEOM

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


def render_page(data: ReportData) -> str:
    """Return the whole page as HTML text; equal reports give equal pages."""
    plots = {"scores": score_plot(data), "attacks": attack_plot(data), "costs": cost_plot(data)}
    return _template().render(
        data=data,
        verdict=data.verdict(),
        attacks=_attacks(data),
        tiles=_tiles(data),
        facts=_facts(data),
        gaps=words.gaps(data),
        # our own plots; any text in them was escaped by the plotting library
        plots={name: Markup(svg) for name, svg in plots.items()},
        glossary=GLOSSARY,
        words=words,
    )


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(TEMPLATE)


def _tiles(data: ReportData) -> dict[str, Reading]:
    """Return the numbers that readers look for, by what they are."""
    score = data.federation.score_name
    return {
        f"{score} on test data": lambda item: item.score("test"),
        f"{score} on the forgotten data": lambda item: item.score("forgotten"),
        "forgotten examples the loss attack calls members": lambda item: item.attacks.get(YEOM),
        "forgotten examples the confidence attack calls members": lambda item: item.attacks.get(CONFIDENCE),
    }


def _attacks(data: ReportData) -> list[tuple[str, str, AttackFigure]]:
    """Return each attack that ran, before the deletion and on the final model, with its figures."""
    return [
        (label, stage, item.figures[name])
        for name, label in words.FIGURE_NAMES.items()
        for stage, item in (("before", data.first("before")), ("after", data.final()))
        if item is not None and name in item.figures
    ]


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
