"""Is what is certified true? Random federations with restarts and deletions, Δ beside the distance to retraining.

    python -m benchmarks.certified.chain --federations 1000 --output docs/results/certified-chain

Ends with 1 if one certified Δ is below the true distance.
"""

import re
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.progress import track

from benchmarks.certified.random_federation import RandomFederation, Stated
from benchmarks.tables import provenance, table, write


def main(
    output: Annotated[Path, typer.Option(help="Where the page goes, without suffix.")],
    federations: int = 1000,
    seed: int = 0,
) -> None:
    """Count what was certified and what was not, and the largest ratio of the true distance to Δ."""
    torch.set_num_threads(1)
    started, ratios, refused = time.monotonic(), [], Counter[str]()
    for case in track(range(seed, seed + federations), description="federations"):
        for stated in RandomFederation.draw(case).run():
            if not stated.is_certified or stated.delta is None:
                refused[_reason(stated)] += 1
            elif stated.distance > 0 or stated.delta > 0:
                ratio = stated.distance / stated.delta if stated.delta else np.inf
                ratios.append((ratio, case))
            else:
                ratios.append((0.0, case))
    largest, where = max(ratios)
    rows: list[list[object]] = [
        ["federations", federations],
        ["deletions that were certified", len(ratios)],
        ["deletions that were not (an assumption is unmet)", sum(refused.values())],
        ["certified with Δ below the true distance", sum(ratio > 1 for ratio, _ in ratios)],
        ["largest true distance / Δ", f"{largest:.3g} (seed {where})"],
        ["median", f"{np.median([ratio for ratio, _ in ratios]):.3g}"],
        ["seconds", f"{time.monotonic() - started:.0f}"],
    ]
    lines = [
        "# Is what is certified true?",
        "",
        f"Seeds {seed} to {seed + federations - 1}. {provenance()}.",
        "",
        "Logistic regression with L2 of 3 to 5 clients, seven rounds in which settings change at restarts (learning "
        "rate, weight decay, epochs, batches, feature norm, weighting, momentum, `prepare`, dtype), clients join late "
        "and take part or not; deletions of one or two clients with noise, some unproven, some given up afterwards. "
        "Each stated Δ beside the distance to exact retraining.",
        "",
        *table(["", ""], rows),
        "",
        "Why the others were not certified, by their first reason:",
        "",
        *table(["reason", "deletions"], refused.most_common()),
    ]
    write(output, lines, {"ratios": sorted(ratio for ratio, _ in ratios)[-100:], "refused": dict(refused)})
    if largest > 1:
        raise typer.Exit(1)


def _reason(stated: Stated) -> str:
    """Return the first sentence that is the same for all rounds and requests."""
    sentence = stated.unmet[0]
    if sentence.startswith("Of round"):
        sentence = sentence.split(". ", 1)[1]
    return re.sub(r"r-\d+(, r-\d+)*|client\(s\) [c0-9, ]+|round \d+|[-+.e0-9]{4,}", "…", sentence).split(
        ". "
    )[0]


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    typer.run(main)
