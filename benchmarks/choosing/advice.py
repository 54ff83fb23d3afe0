"""The table "if you have … take …": each line with the measurement behind it, whose figures come from committed rows.

A figure in a text is `{CASE/METHOD/KIND}` (`measured.CASES`; METHOD may be `nothing` or `retrain`; KIND is `distance`,
or `bytes` or `seconds` as a gain over Retrain) or `{FILE.json:PATH/TO/VALUE}` of docs/results, perhaps with `|FORMAT`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from benchmarks.choosing.measured import RESULTS
from server.requests.plan_data import Comparison


@dataclass(frozen=True, slots=True)
class Advice:
    """One line: the situation, the method, and what was measured."""

    situation: str
    take: str
    measured: str


_CIFAR, _FASHION = "[CIFAR-10](results/cifar10-medium.md)", "[FashionMNIST](results/fashion-mnist-medium.md)"
_ORACLES, _DIGITS = "[oracles](results/oracles-features-small.md)", "[digits](results/digits-small.md)"
_RIVALS = "[digits, forty rounds](results/rivals-small.md)"
_RIDGE, _HEADS = "[exact ridge](results/exact-ridge.md)", "[certified heads](results/certified-heads.md)"

ADVICE = (
    Advice(
        "a network, a **client** that can be reached, nothing prepared",
        "`puf-special`",
        f"{_CIFAR}: {{cifar10/puf-special/distance}} points off, the Original {{cifar10/nothing/distance}}; "
        "{cifar10/puf-special/bytes} fewer bytes; α = 0.1: {cifar10-skew/puf-special/distance} of "
        f"{{cifar10-skew/nothing/distance}}, {{cifar10-skew/puf-special/bytes}}. {_FASHION}: "
        "{fashion/puf-special/distance} of {fashion/nothing/distance}, {fashion/puf-special/bytes}; α = 0.1: "
        "{fashion-skew/puf-special/distance} of {fashion-skew/nothing/distance}, `natural` "
        f"{{fashion-skew/natural/distance}}. It is not retraining: {_ORACLES}, KLoM "
        "{oracles/puf-special/distance}, the floor {oracles/retrain/distance}, the Original {oracles/nothing/distance}",
    ),
    Advice(
        "the same, where every byte counts",
        "`fedquit`",
        f"{_RIVALS}, the only case measured: {{rivals/fedquit/distance}} points off (Original "
        "{rivals/nothing/distance}) at {rivals/fedquit/bytes} fewer bytes; `puf-special` there "
        "{rivals/puf-special/distance} and {rivals/puf-special/bytes}",
    ),
    Advice(
        "the same, and a site that has **gone**, or nearness before all; clients' updates were kept (`prepare`)",
        "`federaser`",
        f"{_CIFAR}: {{cifar10/federaser/distance}} points off, α = 0.1: {{cifar10-skew/federaser/distance}}; "
        f"{_FASHION}: {{fashion/federaser/distance}} and {{fashion-skew/federaser/distance}}. It costs what retraining "
        "costs (retraining's bytes are {cifar10/federaser/bytes} its own, seconds {cifar10/federaser/seconds})",
    ),
    Advice(
        "a client that has gone, nothing prepared",
        "`retrain`; `not` for a model that knows its examples well",
        f"`not`, {_CIFAR}: {{cifar10/not/distance}} points off (Original {{cifar10/nothing/distance}}), "
        "{cifar10/not/bytes} fewer bytes; α = 0.1: {cifar10-skew/not/distance} of {cifar10-skew/nothing/distance}. "
        f"{_FASHION}: {{fashion/not/distance}}, worse than the Original's {{fashion/nothing/distance}}; α = 0.1: "
        "{fashion-skew/not/distance} of {fashion-skew/nothing/distance}, `natural` {fashion-skew/natural/distance}",
    ),
    Advice(
        "shards were prepared (`sisa`)",
        "`sisa`, which nothing else can replace there",
        f"{_CIFAR}: {{cifar10/sisa/distance}} points off, {{cifar10/sisa/bytes}} fewer bytes; {_FASHION}: "
        "{fashion/sisa/distance} and {fashion/sisa/bytes}, with α = 0.1 {fashion-skew/sisa/distance} of "
        "{fashion-skew/nothing/distance}",
    ),
    Advice(
        "a network, **samples** of a client that can be reached",
        "`puf-special`",
        f"{_CIFAR}: {{cifar10-samples/puf-special/distance}} points off (Original "
        "{cifar10-samples/nothing/distance}), {cifar10-samples/puf-special/bytes} fewer bytes; α = 0.1: "
        "{cifar10-skew-samples/puf-special/distance} of {cifar10-skew-samples/nothing/distance}, `puf-regular` "
        f"{{cifar10-skew-samples/puf-regular/distance}}. {_FASHION}: {{fashion-samples/puf-special/distance}} of "
        "{fashion-samples/nothing/distance}, {fashion-samples/puf-special/bytes}; α = 0.1: "
        "{fashion-skew-samples/puf-special/distance} of {fashion-skew-samples/nothing/distance}, `natural` "
        "{fashion-skew-samples/natural/distance}. "
        f"Not on {_DIGITS}, a half-trained model: "
        "{digits-samples/puf-special/distance}, worse than the Original's {digits-samples/nothing/distance}",
    ),
    Advice(
        "a network with a linear classifier head, a **class**",
        "`fedau`",
        f"{_CIFAR}: {{cifar10-class/fedau/distance}} points off (Original {{cifar10-class/nothing/distance}}), "
        "{cifar10-class/fedau/bytes} fewer bytes, `puf-special` {cifar10-class/puf-special/distance} and "
        "{cifar10-class/puf-special/bytes}; α = 0.1: {cifar10-skew-class/fedau/distance}, "
        f"{{cifar10-skew-class/fedau/bytes}}. {_FASHION}: {{fashion-class/fedau/distance}} of "
        "{fashion-class/nothing/distance}, {fashion-class/fedau/bytes}; `puf-special` there "
        f"{{fashion-class/puf-special/distance}}. {_DIGITS}: {{digits-class/fedau/distance}}",
    ),
    Advice(
        "a **linear head** on features, any target; prepared",
        "`exact-ridge`",
        f"{_RIDGE}: the retrained head to {{exact-ridge.json:rows/0/off|.1g}} of its length, test "
        "{exact-ridge.json:rows/0/test after %|.1f} %, {exact-ridge.json:rows/0/CPU s, deletion|.2f} CPU seconds for a "
        "client of ten",
    ),
    Advice(
        "a linear head trained to its minimum, not prepared; **a guarantee wanted** (ε, δ)",
        "one Newton step and noise, by the [library](certified.md), L2 of 0.01 and more",
        f"{_HEADS}: one of fifty clients, ε = 1: {{certified-heads.json:newton/5/before|.1f}} % before, "
        "{certified-heads.json:newton/5/noisy-1|.1f} % with the noise; five clients: "
        "{certified-heads.json:newton/7/noisy-1|.1f} %, with L2 of 0.1 {certified-heads.json:newton/11/noisy-1|.1f} %. "
        "`hf-online` with the same ε for one client of a twenty-round training: "
        "{certified-heads.json:online/3/before|.1f} % before, {certified-heads.json:online/3/noisy-1|.1f} % with it",
    ),
    Advice("a network, a guarantee wanted", "`retrain`", "nothing else has a bound that holds there"),
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
        content: Any = json.loads((RESULTS / file).read_text(encoding="utf-8"))
        value = reduce(
            lambda part, key: part[int(key) if isinstance(part, list) else key], path.split("/"), content
        )
        return f"{value:{style}}"
    case, method, kind = name.split("/")
    there = comparisons[case]
    one = {"nothing": there.nothing, "retrain": there.retrain, **there.methods}[method]
    if kind == "distance":
        return f"{one.distance:.1f}"
    ours, theirs = (
        (one.bytes, there.retrain.bytes) if kind == "bytes" else (one.seconds, there.retrain.seconds)
    )
    return f"{theirs / ours:.3g}×"
