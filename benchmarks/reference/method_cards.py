"""A card per method: its head from what the method states about itself, its figures from the committed comparisons."""

from collections.abc import Iterator, Mapping

from benchmarks.tables import table
from server.requests.comparisons import Comparison, known
from unlearning.methods.method import Method
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity

_FORGETS: Mapping[Granularity, str] = {
    Granularity.CLIENT: "clients",
    Granularity.SAMPLE: "samples",
    Granularity.CLASS: "classes",
}
BUILT_IN: Mapping[str, Method] = {
    name: method for name, method in METHODS.items() if type(method).__module__.startswith("unlearning.")
}
"""Without those of other installed packages."""


def index() -> Iterator[str]:
    """Yield the table of all methods."""
    rows = [
        (
            f"[{method.info.title}](reference-method-{name}.md)",
            f"`{name}`",
            _forgets(method),
            _guarantee(method),
        )
        for name, method in sorted(BUILT_IN.items())
    ]
    yield from table(["method", "name", "forgets", "guarantee"], rows)


def card(method: Method) -> Iterator[str]:
    """Yield the head of a method's card: facts, parameters and measurements."""
    info = method.info
    needs = "; ".join(sorted(info.needs)) or "nothing"
    facts = [
        ("paper", info.source),
        ("forgets", _forgets(method)),
        ("needs", needs + ("; rounds that are FedAvg's" if info.assumes_fedavg else "")),
        ("keeps before a request", info.preparation.keeps if info.preparation is not None else "nothing"),
        ("guarantee", _guarantee(method)),
        ("under secure aggregation", "yes" if info.sums_suffice else "no"),
        ("costs ([symbols](reference-methods.md#symbols-of-the-costs))", _cost(method)),
        *([("note", info.remark)] if info.remark else []),
    ]
    yield from table(["name", f"`{info.name}`"], facts)
    parameters = [
        (
            f"`{name}`",
            f"`{of['default']}`" if "default" in of else "required",
            _cell(of.get("description", "")),
        )
        for name, of in method.Parameters.model_json_schema().get("properties", {}).items()
    ]
    if parameters:
        yield from ("", *table(["parameter", "default", "meaning"], parameters))
    first = {one.granularity: one for one in reversed(known()) if info.name in one.methods}
    if first:
        headings = ["measured", "points from retraining", "doing nothing", "bytes, of retraining's"]
        yield from (
            "",
            *table(headings, [_measured(first[one], info.name) for one in Granularity if one in first]),
        )


def _measured(there: Comparison, name: str) -> tuple[str, ...]:
    one = there.methods[name]
    failed = f" ({one.failed} of {there.num_seeds} seeds failed)" if one.failed else ""
    share = one.bytes / there.retrain.bytes
    return (
        f"[{there.title}]({there.page})",
        one.text + failed,
        there.nothing.text,
        f"{100 * share:.2g} %" if share < 1 else f"{share:.2g} times",
    )


def _forgets(method: Method) -> str:
    several = "" if method.info.several_at_once else ", one at a time"
    return ", ".join(_FORGETS[one] for one in Granularity if one in method.info.granularities) + several


def _guarantee(method: Method) -> str:
    if method.info.is_exact:
        return "exact: a model trained without the data"
    if method.info.draws_noise:
        return "(ε, δ) with noise"
    if method.info.rests_on_training:
        return "(ε, δ) of the training"
    return "none"


def _cost(method: Method) -> str:
    text = " ".join((type(method).cost.__doc__ or "").split("\n\n")[0].split())
    return _cell(text.removeprefix("Compute ").rstrip("."))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
