"""The tables of the two pages, each between two marks; all else on the pages is written by hand."""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.choosing import over_data_sets
from benchmarks.choosing.advice import ADVICE, rendered
from benchmarks.choosing.measured import Case, spread_of_retrain
from benchmarks.tables import between_marks, table
from server.requests.comparisons import NOTHING, Comparison
from server.requests.plan_data import places
from unlearning.requests import Granularity


def with_advice(page: str, comparisons: Mapping[str, Comparison]) -> str:
    """Return the page on choosing with its table made again.

    Raises:
        ValueError: the page lacks a mark.
    """
    return _filled(page, {"advice": _advice(comparisons)})


def with_distances(page: str, cases: Sequence[Case], comparisons: Mapping[str, Comparison]) -> str:
    """Return the page of all distances with its tables made again.

    Raises:
        ValueError: the page lacks a mark.
    """
    tables = {"told apart": [_told_apart(comparisons[case.key]) for case in cases if not case.beside_oracles]}
    for kind, of_kind in _by_kind(cases, comparisons):
        tables[f"distances, {kind}"] = _distances(of_kind, comparisons)
        tables[f"over data sets, {kind}"] = _over_data_sets(of_kind, comparisons)
    return _filled(page, tables)


def _filled(page: str, tables: Mapping[str, Sequence[str]]) -> str:
    for name, lines in tables.items():
        page = between_marks(page, name, lines)
    return page


def _advice(comparisons: Mapping[str, Comparison]) -> list[str]:
    rows = [
        [
            *(one.situation, one.take),
            *(rendered(text, comparisons) for text in (one.measured, one.reveals, one.lasts)),
        ]
        for one in ADVICE
    ]
    return table(["if you have", "take", "measured", "the deletion reveals", "it lasts"], rows)


def _by_kind(
    cases: Sequence[Case], comparisons: Mapping[str, Comparison]
) -> Iterable[tuple[Granularity, list[Case]]]:
    """Yield the cases of each granularity."""
    for kind in Granularity:
        yield kind, [case for case in cases if comparisons[case.key].granularity is kind]


def _distances(cases: Sequence[Case], comparisons: Mapping[str, Comparison]) -> list[str]:
    """Return a line a method and a column a case: the distance, the places, and bytes as a gain over Retrain."""
    there = [comparisons[case.key] for case in cases]
    methods = sorted({name for one in there for name in one.methods})
    headings = [
        f"[{case.title.removesuffix(f', {case.case}')}]({one.page.removeprefix('results/')})"
        for case, one in zip(cases, there, strict=True)
    ]
    rows = [["*doing nothing*", *(f"*{one.nothing.text}*" for one in there)]]
    seeds = ["*seeds*", *(f"*{one.num_seeds}*" for one in there)]
    rows += [[f"`{name}`", *(_cell(one, name) for one in there)] for name in methods]
    floor = [_number(one.retrain.distance) for one in there]
    spread = ["–" if case.beside_oracles else f"± {_number(spread_of_retrain(case))}" for case in cases]
    ends = [
        [name, *(f"*{text}*" for text in texts)]
        for name, texts in (("*Retrain*", floor), ("*its spread*", spread))
    ]
    return table(["", *headings], [seeds, *rows, *ends])


def _cell(there: Comparison, name: str) -> str:
    one = there.methods.get(name)
    if one is None:
        return "–"
    text = one.text if one.spread is None else f"{one.text}; {places(there.rank(name))}"
    if there.is_nearer(NOTHING, name):
        text = f"**{text}**"
    failed = f", {one.failed} of its seeds failed" if one.failed else ""
    gain = f"{there.retrain.bytes / one.bytes:.3g}×" if one.bytes else "no bytes"  # exact ridge asks none
    return f"{text} ({gain}{failed})"


def _over_data_sets(cases: Sequence[Case], comparisons: Mapping[str, Comparison]) -> list[str]:
    """Return the mean places over data sets with their spread, and whether they tell methods apart."""
    there = [comparisons[case.key] for case in cases if not case.beside_oracles and case.has_every_method]
    found = over_data_sets.places(there)
    means, spreads = found.values.mean(axis=0), found.values.std(axis=0, ddof=1)
    order = means.argsort()
    rows = [[f"`{found.methods[one]}`", f"{means[one]:.1f} ± {spreads[one]:.1f}"] for one in order]
    return [*table(["method", "mean place ± over data sets"], rows), "", _verdict(found)]


def _verdict(found: over_data_sets.Places) -> str:
    means, difference = found.values.mean(axis=0), found.critical_difference
    sets = f"{len(found.data_sets)} data sets ({', '.join(found.data_sets)})"
    head = f"{len(found.methods)} methods on {sets}; Friedman's p = {found.p_value:.2g}"
    behind = [
        name for name, mean in zip(found.methods, means, strict=True) if mean - means.min() > difference
    ]
    if found.p_value > over_data_sets.ERROR:
        return f"{head}. **No method is better than another over these data sets.**"
    if not behind:
        return f"{head}: places are no accident, but **no method can be distinguished from the nearest**."
    best = found.methods[int(means.argmin())]
    told = ", ".join(f"`{name}`" for name in behind)
    rest = f"`{best}` is nearer than {told}; no other can be distinguished from it."
    return f"{head}, critical difference {difference:.1f} places: {rest}"


def _told_apart(there: Comparison) -> str:
    """Return a line: who ends nearer than training on without the data, and who further off than the Original."""
    ranked = sorted(there.methods, key=lambda name: there.methods[name].distance)
    nearer = [name for name in ranked if there.is_nearer(name, "natural")]
    worse = [name for name in ranked if there.is_nearer(NOTHING, name)]
    front = [name for name in ranked if name in there.front]
    nearest = f"nearest, and not distinguishable: {_named(there, front)}"
    order = "**no method is better than another here**" if len(front) == len(ranked) else nearest
    return (
        f"- *{there.title}* ({there.num_seeds} seeds; Original {there.nothing.text}, `natural` "
        f"{there.methods['natural'].text}): {order}. Nearer than `natural`: {_named(there, nearer)}. **Further than "
        f"the Original**: {_named(there, worse)}."
    )


def _named(there: Comparison, names: Sequence[str]) -> str:
    return ", ".join(f"`{name}` {there.methods[name].text}" for name in names) or "none"


def _number(distance: float) -> str:
    return f"{distance:.1f}"
