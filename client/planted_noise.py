"""Noise that a data owner planted in its own data, and its score for each model that this site measures.

    state-dir/planted-noise.npz    clean examples and the noise added to them; it never leaves the site
    state-dir/noise-scores.json    of each model that was measured here: round, hash, Gaussian Unlearning Score

A deletion measures the model before, the unlearned one and those of recovery at the site that is forgotten too, so its
owner has the scores of the federation's own models without a request, and the hashes are those of the certificate.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from client.memory import PLANTED, SCORES, state_dir_of
from unlearning.errors import DataError
from unlearning.parameters import Vector, content_hash
from unlearning.runtime.archive import pack_arrays
from unlearning.runtime.durable_files import write_atomically, write_new
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.tasks.arrays import read_archive
from unlearning.tasks.npz import KEYS, LAYOUT, TRAIN
from unlearning.tasks.task import Examples, Task, numbered
from unlearning.verification.gaussian_poison import Planted, judge, plant, scores

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScore:
    """The Gaussian Unlearning Score of one model, of `round`; see `gaussian_poison.GaussianScore`."""

    round: int
    model: str
    mean: float
    z: float
    p_value: float


def plant_in_file(
    source: Path, output: Path, state_dir: Path, *, share: float, deviation: float, seed: int | None = None
) -> int:
    """Write `OUTPUT/train.npz` with noise in a share of the examples of `source`, and keep the noise in `state_dir`.

    seed: of the noise; without it the noise cannot be drawn again. Returns the number of examples that were changed.

    Raises:
        DataError: the file lacks something, its inputs are no floating-point numbers, or noise was planted before.
    """
    content = read_archive(source, KEYS, LAYOUT)
    if not {"inputs", "targets"} <= set(content) or not np.issubdtype(content["inputs"].dtype, np.floating):
        raise DataError(
            f"{source} must hold inputs in floating-point numbers, as the model sees them, and targets: noise in bytes "
            "would be rounded. With dataset=npz bytes become inputs / 255."
        )
    if (state_dir / PLANTED).exists():
        raise DataError(
            f"{state_dir / PLANTED} is there already: the noise of an earlier planting, which would be lost. Move it "
            "away if the data was never trained on."
        )
    ids = content["ids"].astype(np.str_) if "ids" in content else numbered(len(content["inputs"]))
    clean = Examples(torch.from_numpy(content["inputs"]), torch.from_numpy(content["targets"]), ids)
    noisy, planted = plant(clean, share, deviation, np.random.default_rng(seed))
    # The noise first: noisy data without it would be good for nothing.
    write_new(
        state_dir / PLANTED,
        pack_arrays(
            {
                **_arrays_of(planted.clean),
                "noise": planted.noise.numpy(),
                "deviation": np.array(deviation, dtype=np.float64),
            }
        ),
    )
    write_atomically(output / f"{TRAIN}.npz", pack_arrays(_arrays_of(noisy)))
    return len(planted.clean)


def note_score(node_config: Mapping[str, Any], task: Task, model: Vector, number: int) -> NoiseScore | None:
    """Write down the planted noise's score for the model (d,) of round `number`, and return it.

    None where no noise was planted.

    Whatever goes wrong here is logged only: the server's measurement does not depend on it.
    """
    directory = state_dir_of(node_config)
    if directory is None or not (directory / PLANTED).exists():
        return None
    try:
        known, digest = read_scores(directory), content_hash(model)
        for one in known:
            if one.model == digest:
                return one
        found = judge(scores(task, model, _read(directory / PLANTED)))
        score = NoiseScore(round=number, model=digest, mean=found.mean, z=found.z, p_value=found.p_value)
        write_atomically(directory / SCORES, json.dumps(to_plain([*known, score]), indent=1).encode())
    except Exception:  # noqa: BLE001 - whatever it is, the server gets its measurement
        _log.exception("The noise planted at this site has no score for the model of round %d.", number)
        return None
    return score


def read_scores(state_dir: Path) -> list[NoiseScore]:
    """Return the scores of the models that were measured here, in their order.

    Raises:
        DataError: the file is damaged.
    """
    path = state_dir / SCORES
    if not path.exists():
        return []
    try:
        return from_plain(list[NoiseScore], json.loads(path.read_text(encoding="utf-8")))
    except ValueError as exc:
        raise DataError(
            f"{path} is damaged ({exc}). Move it away; models from now on are scored again."
        ) from exc


def _arrays_of(examples: Examples) -> dict[str, NDArray[Any]]:
    return {"inputs": examples.inputs.numpy(), "targets": examples.targets.numpy(), "ids": examples.ids}


def _read(path: Path) -> Planted:
    found = read_archive(
        path, ("inputs", "targets", "ids", "noise", "deviation"), "It is this program's own."
    )
    clean = Examples(torch.from_numpy(found["inputs"]), torch.from_numpy(found["targets"]), found["ids"])
    return Planted(clean, torch.from_numpy(found["noise"]), float(found["deviation"]))
