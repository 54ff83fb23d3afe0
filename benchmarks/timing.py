"""How long calls take: the clocks of the benchmarks, and ways that take turns."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Name = TypeVar("Name")
Result = TypeVar("Result")


def device_clock() -> float:
    """Return seconds: of this process's CPU time, or on an accelerator until all that was asked of it is done."""
    if DEVICE.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def time_call(
    call: Callable[[], Result], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Result]:
    """Return the seconds of a call by a clock, by default the wall's, and what came of it."""
    started = clock()
    result = call()
    return clock() - started, result


def median_seconds(
    ways: Mapping[Name, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.process_time
) -> dict[Name, float]:
    """Return the median seconds of each way, by default of the processor; they take turns, of which the first does not
    count.
    """
    turns = [{name: time_call(way, clock)[0] for name, way in ways.items()} for _ in range(repeats + 1)]
    return {name: statistics.median(turn[name] for turn in turns[1:]) for name in ways}
