"""Shadow federations that are unlearned: each trains on a half of what the case forgets, and then forgets it.

An experiment with `shadows: N` has N seeds, in pairs. All have the same clients, but of what the case forgets seed 2k
has one random half and seed 2k + 1 the other, and each method forgets it. So for every example there are N/2 models
that had it and forgot it, and N/2 that never had it and forgot others: U-LiRA's two sides. The row Original is of the
same federations before (that is LiRA), and Retrain's models have nothing of either half: its figure is chance.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench.columns import Row
from benchmarks.bench.oracles import Ends, Margins, of_ends, read, stacked
from benchmarks.bench.u_lira import FEWEST_PAIRS, u_lira_of_shadows


def figures(found: Margins, ends: Ends | None = None) -> dict[str, Any]:
    """Return U-LiRA of whole pairs, one after another; nothing where they are too few or a model blew up."""
    pairs = len(found["forget"]) // 2 if found else 0
    if pairs < FEWEST_PAIRS or not np.isfinite(found["forget"]).all():
        return {}
    attack = u_lira_of_shadows(found["forget"], found["had"] == 1)
    row = {"shadows": 2 * pairs, "u-lira": attack.balanced_accuracy, "u-lira-tpr": attack.tpr}
    return row | of_ends(attack, ends)


def with_figures(rows: Sequence[tuple[Row, Path]], ends: Ends | None = None) -> list[Row]:
    """Return the rows of one setting, each with its method's figures under `shadows`: of all its seeds together.

    rows: with the file of the model's margins, which a failed row lacks; its pair then counts for nothing.
    """
    paths: dict[str, dict[int, Path]] = {}
    for row, path in rows:
        if path.exists():
            paths.setdefault(row["method"], {})[row["seed"]] = path
    found = {}
    for method, mine in paths.items():
        whole = [seed for seed in sorted(mine) if seed ^ 1 in mine]
        found[method] = figures(stacked([read(mine[seed]) for seed in whole]), ends)
    return [{**row, "shadows": found.get(row["method"], {})} for row, _ in rows]
