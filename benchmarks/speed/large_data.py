"""A site whose data are larger than memory: what it holds in memory, and how fast it trains beside data in memory.

    python -m benchmarks.speed.large_data --gigabytes 20 --output docs/results/large-data

Memory: a site of uint8 pictures in a sparse file (`truncate`: its blocks read as zeros and take no room on the disk)
trains an epoch, forgets 1 % of its samples by PUF-Special, and measures both models on what it retains and on
what it forgot. The peak is that of the process's own memory (`RssAnon`), seen every 20 ms. Pages of the file that the
operating system keeps for as long as nobody needs the room (`RssFile`) are not the process's and are given beside.

Throughput: training on pictures that lie in memory as floats, as data in memory do, and on the same pictures in a
memory-mapped file of bytes, which is in the page cache after the first pass; in turns, in one process and one thread,
medians of processor time. The model is `small-cnn`.
"""

import resource
import threading
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console

from benchmarks.tables import provenance, table, write
from benchmarks.timing import median_seconds
from unlearning.local import Learnt, unlearn
from unlearning.requests import Granularity, Target
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, forgotten_mask
from unlearning.training import TrainingSettings, initial_parameters, train
from unlearning.verification.observations import observe_model

console = Console()
SIDE, CLASSES = 224, 10
PICTURE_BYTES = 3 * SIDE * SIDE


class Peak:
    """The most memory that this process holds while it is open, in bytes: its own, and pages of files."""

    def __init__(self) -> None:
        self.own = self.files = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _look(self) -> None:
        page = resource.getpagesize()
        with Path("/proc/self/statm").open("rb", buffering=0) as statm:
            while True:
                statm.seek(0)
                _, resident, shared, *_ = map(int, statm.read().split())
                self.own = max(self.own, page * (resident - shared))
                self.files = max(self.files, page * shared)
                if self._ends.wait(0.02):
                    return


def sparse_site(directory: Path, num_bytes: int) -> Examples:
    """Return a site of so many bytes of pictures (3, 224, 224) in a file without blocks."""
    count = max(200, num_bytes // PICTURE_BYTES)
    path = directory / "inputs.npy"
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, SIDE, SIDE)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + count * PICTURE_BYTES)
    return Examples.from_arrays(np.load(path, mmap_mode="r"), np.arange(count) % CLASSES)


def measure_memory(directory: Path, num_bytes: int) -> dict[str, float]:
    """Train, forget and measure at a site of so many bytes; return seconds and bytes by name."""
    shape = f"3x{SIDE}x{SIDE}"
    task = make_task(TaskSettings(dataset="npy", num_classes=CLASSES, input_shape=shape, model="logistic"))
    training = TrainingSettings(batch_size=64, learning_rate=0.01)
    started = time.monotonic()
    with Peak() as peak:
        site = sparse_site(directory, num_bytes)
        forgotten = frozenset(site.ids[::100].tolist())
        target = Target(Granularity.SAMPLE, "site", forgotten)
        trained = train(task, initial_parameters(task, 0), site, training).parameters
        learnt = Learnt(parameters=trained, training=training)
        unlearned = unlearn("puf-special", task, learnt, {"site": site}, [target]).parameters
        mask = forgotten_mask(site, target.forget)
        for model in (trained, unlearned):
            for part in (site.select(~mask), site.select(mask)):
                observe_model(task, model, part, max_samples=1000, generator=np.random.default_rng(0))
    return {
        "examples": len(site),
        "forgotten": len(forgotten),
        "data": len(site) * PICTURE_BYTES,
        "own memory": peak.own,
        "pages of files": peak.files,
        "seconds": time.monotonic() - started,
    }


def measure_throughput(directory: Path, count: int, repeats: int) -> dict[str, float]:
    """Return examples a second of processor time in memory and from a file, and the ratio."""
    task = make_task(
        TaskSettings(dataset="npy", num_classes=CLASSES, input_shape="3x32x32", model="small-cnn")
    )
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(count) % CLASSES
    np.save(directory / "small.npy", pixels)
    mapped = Examples.from_arrays(np.load(directory / "small.npy", mmap_mode="r"), labels)
    in_memory = Examples(
        torch.from_numpy(pixels.astype(np.float32) / 255), torch.from_numpy(labels), mapped.ids
    )
    start = initial_parameters(task, 0)
    training = TrainingSettings(batch_size=32, learning_rate=0.05)
    ways = {
        name: partial(train, task, start, examples, training)
        for name, examples in (("in memory", in_memory), ("memory-mapped", mapped))
    }
    one, other = (way().parameters for way in ways.values())
    assert np.array_equal(one, other), "the same bits wherever data lie"
    speed = {name: count / seconds for name, seconds in median_seconds(ways, repeats).items()}
    return {**speed, "ratio": speed["memory-mapped"] / speed["in memory"]}


def main(
    output: Annotated[Path, typer.Option(help="Page and figures, without ending.")] = Path("runs/large-data"),
    gigabytes: Annotated[float, typer.Option(help="Of the site's pictures.")] = 20.0,
    directory: Annotated[Path | None, typer.Option(help="Where the files go; a temporary one.")] = None,
    pictures: Annotated[int, typer.Option(help="Small ones, for the throughput.")] = 4000,
    repeats: Annotated[int, typer.Option(help="Passes over them, each way.")] = 5,
) -> None:
    """Measure both and write the page."""
    torch.set_num_threads(1)
    with TemporaryDirectory(dir=directory) as made:
        speed = measure_throughput(Path(made), pictures, repeats)
        memory = measure_memory(Path(made), int(gigabytes * 1e9))
    rows = [
        ("pictures of 3 × 224 × 224 bytes", f"{memory['examples']:,.0f}, {memory['data'] / 1e9:.1f} GB"),
        ("of these forgotten", f"{memory['forgotten']:,.0f}"),
        ("the process's own memory at most", f"{memory['own memory'] / 1e9:.2f} GB"),
        ("pages of files at most, which the system takes back", f"{memory['pages of files'] / 1e9:.2f} GB"),
        ("seconds, all together", f"{memory['seconds']:.0f}"),
        ("in memory, examples a CPU second", f"{speed['in memory']:,.0f}"),
        ("memory-mapped, examples a CPU second", f"{speed['memory-mapped']:,.0f}"),
        ("ratio", f"{speed['ratio']:.3f}"),
    ]
    intro = (
        "One site of uint8 pictures in a sparse file: an epoch of `logistic`, 1 % of the samples forgotten by "
        "PUF-Special, and both models measured on both parts. Throughput: `small-cnn`, processor time, medians of "
        f"{repeats}. {provenance()}."
    )
    page = ["# Data larger than memory", "", intro, "", *table(("what", "measured"), rows)]
    write(output, page, memory | speed)


if __name__ == "__main__":
    typer.run(main)
