"""The tables of docs/choosing.md, each between two marks; all else on the page is written by hand."""

import re
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.choosing.advice import ADVICE, rendered
from benchmarks.choosing.measured import Case, spread_of_retrain
from benchmarks.tables import table
from server.requests.plan_data import Comparison, Figures
from unlearning.requests import Granularity


def with_tables(page: str, cases: Sequence[Case], comparisons: Mapping[str, Comparison]) -> str:
    """Return the page with its tables made anew.

    Raises:
        ValueError: the page lacks a mark.
    """
    tables = {
        "advice": _advice(comparisons),
        **{
            f"distances, {kind}": _distances(of_kind, comparisons)
            for kind, of_kind in _by_kind(cases, comparisons)
        },
        "worse": _worse(cases, comparisons),
    }
    for name, lines in tables.items():
        made = f"<!-- {name} -->\n" + "\n".join(lines) + f"\n<!-- end of {name} -->"
        parts = re.split(rf"(?s)<!-- {name} -->.*<!-- end of {name} -->", page)
        if len(parts) != 2:
            raise ValueError(
                f"The page has no place for its table: <!-- {name} --> … <!-- end of {name} -->."
            )
        page = made.join(parts)
    return page


def _advice(comparisons: Mapping[str, Comparison]) -> list[str]:
    rows = [[one.situation, one.take, rendered(one.measured, comparisons)] for one in ADVICE]
    return table(["if you have", "take", "measured"], rows)


def _by_kind(
    cases: Sequence[Case], comparisons: Mapping[str, Comparison]
) -> Iterable[tuple[Granularity, list[Case]]]:
    """Yield the cases of each granularity."""
    for kind in Granularity:
        yield kind, [case for case in cases if comparisons[case.key].granularity is kind]


def _distances(cases: Sequence[Case], comparisons: Mapping[str, Comparison]) -> list[str]:
    """Return a line a method and a column a case: the distance, and bytes as a gain over Retrain."""
    there = [comparisons[case.key] for case in cases]
    methods = sorted({name for one in there for name in one.methods})
    headings = [
        f"[{case.title.removesuffix(f', {case.case}')}]({one.page})"
        for case, one in zip(cases, there, strict=True)
    ]
    rows = [["*doing nothing*", *(f"*{_number(one.nothing.distance)}*" for one in there)]]
    rows += [[f"`{name}`", *(_cell(one, name) for one in there)] for name in methods]
    floor = [_number(one.retrain.distance) for one in there]
    spread = ["–" if case.beside_oracles else f"± {_number(spread_of_retrain(case))}" for case in cases]
    ends = [
        [name, *(f"*{text}*" for text in texts)]
        for name, texts in (("*Retrain*", floor), ("*its spread*", spread))
    ]
    return table(["", *headings], [*rows, *ends])


def _cell(there: Comparison, name: str) -> str:
    one = there.methods.get(name)
    if one is None:
        return "–"
    text = _number(one.distance)
    if one.is_further_than(there.nothing):
        text = f"**{text}**"
    failed = f", {one.failed} of its seeds failed" if one.failed else ""
    return f"{text} ({there.retrain.bytes / one.bytes:.3g}×{failed})"


def _worse(cases: Sequence[Case], comparisons: Mapping[str, Comparison]) -> list[str]:
    """Return a line a case: who ends further from retraining than the Original, and who no nearer than training on."""
    lines = []
    for case in cases:
        there = comparisons[case.key]
        nothing, natural = there.nothing, there.methods["natural"]
        ranked = sorted(there.methods.items(), key=lambda item: item[1].distance)
        worse = [item for item in ranked if item[1].is_further_than(nothing)]
        no_better = [item for item in ranked if item not in worse and not natural.is_further_than(item[1])]
        lines.append(
            f"- *{case.title}*: **worse than the Original** ({_number(nothing.distance)}): {_named(worse)}; not "
            f"worse, but no nearer than `natural` ({_number(natural.distance)}): {_named(no_better)}."
        )
    return lines


def _named(methods: Iterable[tuple[str, Figures]]) -> str:
    named = (f"`{name}` {_number(one.distance)}" for name, one in methods if name != "natural")
    return ", ".join(named) or "none"


def _number(distance: float) -> str:
    return f"{distance:.1f}"
