"""A federation whose forgotten client's records come back: its owner takes part again under another client's id.

The records are noise, so that the model knows of them only what it has memorised: attacks find a client's records while
the model is trained on them, and cannot tell them from others afterwards.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORGOTTEN, OTHER, NUM_CLIENTS = 2, 1, 4
SETTINGS = {
    "dataset": "npz",
    "model": "logistic",
    "input_shape": "1x12x12",
    "num_classes": 2,
    "num_clients": NUM_CLIENTS,
    "learning_rate": 0.3,
    "local_epochs": 3,
    "attack_samples": 1000,
    "recovery_max_rounds": 1,
    "max_influence_factor": 0.0,
    "max_norm_factor": 0.0,
}


def write_data(directory: Path, num_records: int = 100, num_test: int = 200) -> Callable[[int], Path]:
    """Write each client's records, and the server's test records; the function gives a client's directory."""
    generator = np.random.default_rng(0)
    for client in range(NUM_CLIENTS):
        _write(directory / str(client), "train", **_noise(num_records, generator))
    _write(directory, "train", **_noise(1, generator))
    _write(directory, "test", **_noise(num_test, generator))
    return lambda client: directory / str(client)


def come_back(place: Callable[[int], Path]) -> Path:
    """Return a directory with the records of another client and the forgotten one's among them, under new ids."""
    own, gone = (np.load(place(client) / "train.npz") for client in (OTHER, FORGOTTEN))
    both = {name: np.concatenate([own[name], gone[name]]) for name in ("inputs", "targets")}
    directory = place(OTHER).with_name("both")
    _write(directory, "train", **both)
    return directory


def _noise(count: int, generator: np.random.Generator) -> dict[str, NDArray[Any]]:
    inputs = generator.normal(size=(count, 1, 12, 12)).astype(np.float32)
    return {"inputs": inputs, "targets": generator.integers(0, 2, count)}


def _write(directory: Path, name: str, **arrays: NDArray[Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    np.savez(directory / f"{name}.npz", **arrays)
