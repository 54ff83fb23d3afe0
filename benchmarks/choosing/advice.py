"""The table "if you have … take …": each line with the measurement behind it, whose figures come from committed rows.

A figure in a text is `{CASE/METHOD/KIND}` (`measured.CASES`; METHOD may be `nothing` or `retrain`; KIND is `distance`,
`told` for what it is told apart from, or `bytes` or `seconds` as a gain over Retrain) or `{FILE.json:PATH/TO/VALUE}` of
docs/results, perhaps with `|FORMAT`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from benchmarks.choosing.measured import RESULTS
from benchmarks.tables import figures_of
from server.requests.comparisons import NOTHING, Comparison


@dataclass(frozen=True, slots=True)
class Advice:
    """One line: the situation, the method, what was measured, what a deletion itself reveals, and whether it lasts."""

    situation: str
    take: str
    measured: str
    reveals: str = "not measured"
    lasts: str = "not measured"


_CIFAR, _FASHION = "[CIFAR-10](results/cifar10-medium.md)", "[FashionMNIST](results/fashion-mnist-medium.md)"
_ORACLES, _DIGITS = "[oracles](results/oracles-features-small.md)", "[digits](results/digits-small.md)"
_RIVALS = "[digits, forty rounds](results/rivals-small.md)"
_RIDGE, _HEADS = "[exact ridge](results/exact-ridge.md)", "[certified heads](results/certified-heads.md)"
_HEART = "[heart disease](results/held-out-heart-disease.md)"


def _auc(row: str, stage: str = "recovered") -> str:
    return f"{{difference-attacks.json:rows/{row}/{stage}/auc/0|.2f}}"


def _lasting(method: str) -> str:
    row = f"persistence.json:rows/a client {method}"
    return f"{{{row}/curve/100/score|.0%}}, relearnt in {{{row}/relearnt|s}}"


ADVICE = (
    Advice(
        "a network on pictures, a **client** that can be reached, nothing prepared",
        "`puf-special`",
        f"{_CIFAR}: {{cifar10/puf-special/distance}} points off (doing nothing: {{cifar10/nothing/distance}}), "
        "{cifar10/puf-special/bytes} fewer bytes, {cifar10/puf-special/told}; α = 0.1: "
        "{cifar10-skew/puf-special/told}. "
        f"It is not retraining: {_ORACLES}, KLoM {{oracles/puf-special/distance}}, floor {{oracles/retrain/distance}}",
        _auc("client puf-special"),
        _lasting("puf-special"),
    ),
    Advice(
        "the same, where every byte counts",
        "`fedquit`, if at all",
        f"{_RIVALS}: {{rivals/fedquit/bytes}} fewer bytes, but {{rivals/fedquit/told}}",
        _auc("client fedquit"),
        _lasting("fedquit"),
    ),
    Advice(
        "the same, a site that has **gone**, and `federaser` prepared",
        "`federaser`",
        f"{_CIFAR}: {{cifar10/federaser/distance}} points off, {{cifar10/federaser/told}}; α = 0.1: "
        "{cifar10-skew/federaser/told}. It costs what retraining costs (retraining's bytes are "
        "{cifar10/federaser/bytes} its own)",
        _auc("client federaser"),
        _lasting("federaser"),
    ),
    Advice(
        "a site that has gone, nothing prepared",
        "`retrain`; `not` for a model that knows its examples well",
        f"`not`, {_CIFAR}: {{cifar10/not/distance}} points off, {{cifar10/not/bytes}} fewer bytes, "
        f"{{cifar10/not/told}}; {_FASHION}: {{fashion/not/told}}",
        f"`retrain` {_auc('client retrain')}, `not` {_auc('client not')}",
        f"`retrain` {_lasting('retrain')}, `not` {_lasting('not')}",
    ),
    Advice(
        "shards were prepared (`sisa`)",
        "`sisa`; no other method works there",
        f"{_HEART}: {{heart-disease/sisa/distance}} points off its own shards retrained, by construction",
        _auc("client sisa"),
        _lasting("sisa"),
    ),
    Advice(
        "a network on pictures, **samples** of a client that can be reached",
        "`puf-special`",
        f"{_CIFAR}: {{cifar10-samples/puf-special/distance}} points off (doing nothing: "
        "{cifar10-samples/nothing/distance}), {cifar10-samples/puf-special/bytes} fewer bytes, "
        f"{{cifar10-samples/puf-special/told}}; {_DIGITS}, a half-trained model: {{digits-samples/puf-special/told}}",
        f"one sample {_auc('samples puf-special 1')}; before recovery "
        f"{_auc('samples puf-special 1', 'unlearned')} and the sample itself",
        f"a client: {_lasting('puf-special')}",
    ),
    Advice(
        "a network with a linear classifier head, a **class**",
        "`fedau`",
        f"{_CIFAR}: {{cifar10-class/fedau/distance}} points off (doing nothing: {{cifar10-class/nothing/distance}}), "
        f"{{cifar10-class/fedau/bytes}} fewer bytes, {{cifar10-class/fedau/told}}; {_FASHION}: "
        "{fashion-class/fedau/distance}, {fashion-class/fedau/told}",
        f"a client: {_auc('client fedau')}",
        f"a client: {_lasting('fedau')}",
    ),
    Advice(
        "a **table**, a client",
        "`puf-regular`",
        f"{_HEART}: {{heart-disease/puf-regular/distance}} points off (doing nothing: "
        "{heart-disease/nothing/distance}), {heart-disease/puf-regular/bytes} fewer bytes, "
        "{heart-disease/puf-regular/told}",
        _auc("client puf-regular"),
        _lasting("puf-regular"),
    ),
    Advice(
        "a **linear head** on features, prepared (`exact-ridge`); any target",
        "`exact-ridge`",
        f"{_RIDGE}: the retrained head to {{exact-ridge.json:rows/0/off|.1g}} of its length, "
        "{exact-ridge.json:rows/0/CPU s, deletion|.2f} CPU seconds for a client of ten",
        f"{_auc('client exact-ridge')}; one sample {_auc('samples exact-ridge 1')} and the sample itself",
        _lasting("exact-ridge"),
    ),
    Advice(
        "a linear head at its minimum, not prepared; an (ε, δ) **guarantee** wanted",
        "a Newton step and noise, by the [library](explanation-certified-deletion.md)",
        f"{_HEADS}, ε = 1: {{certified-heads.json:newton/5/before|.1f}} % accuracy before, "
        "{certified-heads.json:newton/5/noisy-1|.1f} % with the noise, one of fifty clients; five clients: "
        "{certified-heads.json:newton/7/noisy-1|.1f} %",
    ),
    Advice(
        "a network, a guarantee wanted",
        "`retrain`, or `noisy-fine-tuning`",
        "[noisy fine-tuning](results/certified-noisy.md), LeNet, ε = 8: {certified-noisy.json:rows/14/rounds|d} "
        "rounds to retraining's accuracy, `retrain` {certified-noisy.json:rows/10/rounds|d}",
        f"`retrain` {_auc('client retrain')}, `noisy-fine-tuning` {_auc('client noisy-fine-tuning')}",
        f"`retrain` {_lasting('retrain')}, `noisy-fine-tuning` {_lasting('noisy-fine-tuning')}",
    ),
    Advice(
        "a guarantee wanted, and many clients (hundreds)",
        'train with `privacy = "client"` from the first round; then `dp-covered`',
        "a deletion costs nothing; [accuracy over ε](results/private-training.md)",
    ),
)


def rendered(text: str, comparisons: Mapping[str, Comparison]) -> str:
    """Return the text with its figures.

    Raises:
        KeyError: there is no such case, method or file entry.
    """
    return re.sub(r"\{([^}|]+)(?:\|([^}]+))?\}", lambda found: _figure(found[1], found[2], comparisons), text)


def _figure(name: str, style: str | None, comparisons: Mapping[str, Comparison]) -> str:
    if ".json:" in name:
        file, _, path = name.partition(":")
        content: Any = figures_of(RESULTS / file)
        value = reduce(
            lambda part, key: part[int(key) if isinstance(part, list) else key], path.split("/"), content
        )
        return f"{value:{style}}".replace("%", " %")
    case, method, kind = name.split("/")
    there = comparisons[case]
    one = {"nothing": there.nothing, "retrain": there.retrain, **there.methods}[method]
    if kind == "distance":
        return one.text
    if kind == "told":
        return _told(there, method)
    ours, theirs = (
        (one.bytes, there.retrain.bytes) if kind == "bytes" else (one.seconds, there.retrain.seconds)
    )
    return f"{theirs / ours:.3g}×"


def _told(there: Comparison, method: str) -> str:
    """Return what the seeds tell of a method beside doing nothing and beside training on without the data."""
    beside = {NOTHING: "doing nothing", "natural": "`natural`"}
    nearer = [title for name, title in beside.items() if there.is_nearer(method, name)]
    further = [title for name, title in beside.items() if there.is_nearer(name, method)]
    equal = [title for title in beside.values() if title not in (*nearer, *further)]
    parts = {"nearer than": nearer, "further off than": further, "not distinguishable from": equal}
    return ", ".join(f"{words} {' and '.join(titles)}" for words, titles in parts.items() if titles)
