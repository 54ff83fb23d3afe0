"""What a curvature product costs beside one gradient, in time and memory, and how a solve's time grows.

    python -m benchmarks.speed.curvature_products --output docs/results/curvature-cpu
    python -m benchmarks.speed.curvature_products --output docs/results/curvature-gpu --factor 16

Runs on an accelerator where there is one. Time: all ways of one model run in one process and one thread, one after the
other, again and again; given are medians of the process's CPU time (nothing waits, so it is the time on an idle
machine, and a busy one disturbs it less), on an accelerator of the time until it has finished, as ratios to the
median gradient of the same model and examples. The gradient is plain
`torch.autograd.grad` on a model that is already built, so that the ratio flatters nobody. Peers: double
backward with the graph built anew for each product, and curvlinops where it is installed.

Memory: a process of its own for each way. torch's allocations are invisible to `tracemalloc`, and its
profiler counts what operators ask for and not what the process holds, so the kernel's high-water mark of
resident memory is set back after a small warm-up and read after the second product (Linux only). On an accelerator
it is the most that torch's tensors took there.

Data are random; weights are the initial ones. Neither changes the number of operations.
"""

import multiprocessing
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from benchmarks.data import NUM_CLASSES, random_examples, task_of
from benchmarks.tables import table, write
from benchmarks.timing import DEVICE, device_clock, median_seconds
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import RECORD_AFTER, CurvatureProduct
from unlearning.errors import NumericalError
from unlearning.parameters import Vector
from unlearning.solvers.conjugate_gradient import conjugate_gradient
from unlearning.tasks.models import MODELS, Kind, Shape
from unlearning.training import initial_parameters, model_with

UNLIMITED = 2**40
REPETITIONS = 5
"""Of each solve."""
GRADIENT = "gradient"
DOUBLE_BACKWARD = "hessian, plain double backward"
OURS = {
    f"{kind}, {path}": (kind, budget)
    for kind in CurvatureKind
    for path, budget in (("kept", UNLIMITED), ("rebuilt", 1))
}
RECORDED = {f"{kind}, recorded": kind for kind in (CurvatureKind.GAUSS_NEWTON, CurvatureKind.FISHER)}
"""After so many products that the derivative is recorded, where that gives the same bits; times only."""
PEERS = ("hessian, curvlinops", "gauss-newton, curvlinops")
console = Console()


@dataclass(frozen=True, slots=True)
class Case:
    """A model on so many random examples, all in one micro-batch."""

    model: str
    shape: Shape
    num_examples: int

    @property
    def title(self) -> str:
        """Model, shape and number of examples in words."""
        return f"{self.model} {'x'.join(map(str, self.shape))}, {self.num_examples} examples"


CASES = {
    case.model: case
    for case in (
        Case("cnn", (1, 28, 28), 64),
        Case("small-cnn", (3, 32, 32), 32),
        Case("vit-lite", (3, 32, 32), 32),
        Case("res-unet", (3, 32, 32), 16),
        Case("resnet18", (3, 32, 32), 8),
    )
}


class Ways:
    """Every way to a gradient or a product for one case, each a function without arguments."""

    def __init__(self, case: Case) -> None:
        segmentation = MODELS[case.model].kind is Kind.SEGMENTATION
        self.task = task_of(
            partial(MODELS[case.model].factory, case.shape, NUM_CLASSES), segmentation=segmentation
        )
        self.examples = random_examples(case.num_examples, case.shape, segmentation=segmentation)
        self.theta = initial_parameters(self.task, 0)
        self.vector = np.random.default_rng(0).standard_normal(self.theta.size).astype(np.float32)
        self.model = model_with(self.task, initial_parameters(self.task, 0)).to(DEVICE).eval()
        self.inputs, self.targets = self.examples.inputs.to(DEVICE), self.examples.targets.to(DEVICE)
        self.parameters = list(self.model.parameters())

    def warm_up(self) -> None:
        """Load what torch loads at the first call, with one example."""
        loss = self.task.loss(self.model(self.inputs[:1]), self.targets[:1])
        torch.autograd.grad(loss, self.parameters)

    def way_named(self, name: str) -> Callable[[], object]:
        """Return the way called `name`."""
        if name == GRADIENT:
            return self._gradient
        if name == DOUBLE_BACKWARD:
            return self._double_backward
        if name in PEERS:
            return self._curvlinops(name)
        kind, budget = OURS[name] if name in OURS else (RECORDED[name], UNLIMITED)
        product = CurvatureProduct(
            self.task,
            self.theta,
            self.examples,
            kind=kind,
            memory_budget_bytes=budget,
            micro_batch_size=len(self.examples),
        )
        if name in RECORDED:
            for _ in range(RECORD_AFTER):
                product(self.vector)
            if not product.num_recorded:
                raise NumericalError("The derivative was not recorded; forward mode stays.")
        return lambda: product(self.vector)

    def _loss(self) -> Tensor:
        return self.task.loss(self.model(self.inputs), self.targets)

    def _gradient(self) -> object:
        return torch.autograd.grad(self._loss(), self.parameters)

    def _double_backward(self) -> object:
        vector, parts, start = torch.from_numpy(self.vector).to(DEVICE), [], 0
        for parameter in self.parameters:
            parts.append(vector[start : start + parameter.numel()].reshape(parameter.shape))
            start += parameter.numel()
        first = torch.autograd.grad(self._loss(), self.parameters, create_graph=True)
        second = torch.autograd.grad(first, self.parameters, parts)
        return torch.cat([part.reshape(-1) for part in second]).cpu().numpy()

    def _curvlinops(self, name: str) -> Callable[[], object]:
        import curvlinops  # type: ignore[import-not-found]  # optional: pip install curvlinops-for-pytorch

        operator_class = (
            curvlinops.HessianLinearOperator if name.startswith("hessian") else curvlinops.GGNLinearOperator
        )
        operator = operator_class(
            self.model,
            nn.CrossEntropyLoss(),
            self.parameters,
            [(self.inputs, self.targets)],
            check_deterministic=False,
        )
        vector = torch.from_numpy(self.vector).to(DEVICE)
        return lambda: operator @ vector


def measure_times(case: Case, repetitions: int) -> dict[str, float | str]:
    """Return median seconds of each way, interleaved; the reason in words where a way fails."""
    ways, runnable, result = Ways(case), {}, {}
    for name in (GRADIENT, DOUBLE_BACKWARD, *OURS, *RECORDED, *PEERS):
        try:
            runnable[name] = ways.way_named(name)
            runnable[name]()  # builds the kept graphs
        except ImportError:
            result[name] = "not installed"
        except NumericalError:
            if name not in RECORDED:
                raise
            result[name] = "not recorded"
        except Exception as exc:
            if name not in PEERS:
                raise
            result[name] = f"fails: {type(exc).__name__}"
            runnable.pop(name, None)
    return {**median_seconds(runnable, repetitions, device_clock), **result}


def measure_peaks(case: Case) -> dict[str, float | None]:
    """Return peak bytes above the start of each way, each in a fresh process."""
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for name in (GRADIENT, DOUBLE_BACKWARD, *OURS):
        with context.Pool(1) as pool:
            peaks[name] = pool.apply(peak_of, (case, name))
    return peaks


def peak_of(case: Case, name: str) -> float | None:
    """Return bytes by which two calls of a way raise the high-water mark of this process, or of the
    accelerator; None where unknown.
    """
    torch.set_num_threads(1)
    ways = Ways(case)
    ways.warm_up()
    is_on_device = DEVICE.type == "cuda"
    if is_on_device:
        torch.cuda.reset_peak_memory_stats()
        before: float = torch.cuda.memory_allocated()
    else:
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return None
        before = resident_bytes("VmRSS")
    way = ways.way_named(name)
    way()
    way()
    return (torch.cuda.max_memory_allocated() if is_on_device else resident_bytes("VmHWM")) - before


def resident_bytes(field: str) -> float:
    """Return a field of this process's memory status in bytes; the kernel gives kibibytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * float(next(line for line in lines if line.startswith(field)).split()[1])


def time_against_iterations(case: Case, counts: Iterable[int]) -> dict[int, float]:
    """Return seconds of k conjugate-gradient steps, set-up included, in gradients of the same examples."""
    ways = Ways(case)
    solves = {count: partial(solve, ways, count) for count in counts}
    seconds = median_seconds({0: ways.way_named(GRADIENT), **solves}, REPETITIONS, device_clock)
    return {count: seconds[count] / seconds[0] for count in solves}


def solve(ways: Ways, iterations: int) -> Vector:
    """Compute So many steps with the Gauss-Newton matrix."""
    product = CurvatureProduct(
        ways.task,
        ways.theta,
        ways.examples,
        kind=CurvatureKind.GAUSS_NEWTON,
        damping=0.1,
        micro_batch_size=len(ways.examples),
    )
    return conjugate_gradient(product, ways.vector, max_iterations=iterations, tolerance=0.0).value


def time_against_dimension(widths: Iterable[int]) -> dict[int, float]:
    """Return seconds of ten Gauss-Newton steps on perceptrons of growing width, by number of parameters."""
    solves = {}
    for width in widths:
        ways = Ways(Case("logistic", (1, 28, 28), 64))
        ways.task = task_of(partial(perceptron, width))
        ways.theta = initial_parameters(ways.task, 0)
        ways.vector = np.random.default_rng(0).standard_normal(ways.theta.size).astype(np.float32)
        solves[ways.theta.size] = partial(solve, ways, 10)
    return median_seconds(solves, REPETITIONS, device_clock)


def perceptron(width: int) -> nn.Module:
    """Return two hidden layers of `width` units on 784 inputs."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, NUM_CLASSES),
    )  # fmt: skip


def page(result: Mapping[str, Any]) -> list[str]:
    """Return the lines of the page."""
    machine = result["machine"]
    return [
        "# What a curvature product costs",
        "",
        f"Made by `benchmarks/speed/curvature_products.py` with torch {machine['torch']}, Python {machine['python']}, "
        f"{machine['processor']}, {machine['device']}, one thread, float32; medians of the "
        f"{machine['clock']} of {result['repetitions']} interleaved repetitions.",
        "Each entry is the time as a multiple of one gradient and, in brackets, the peak memory as a multiple "
        "of one gradient's (a process of its own, high-water mark above the start).",
        "*kept*: the graph stays between products; *rebuilt*: it does not. One micro-batch. The memory of ours "
        "includes a model of its own and vectors of its size, which weigh most where the model is large and the "
        "examples few. Segmentation is cross entropy plus Dice; curvlinops is given cross entropy alone.",
        "",
        *table(
            ["", *result["cases"]],
            (
                [name, *(cell(case, name) for case in result["cases"].values())]
                for name in (GRADIENT, DOUBLE_BACKWARD, *OURS, *RECORDED, *PEERS)
            ),
        ),
        "",
        f"## k steps of conjugate gradients ({result['iterations']['case']}, Gauss-Newton, set-up included)",
        "",
        *table(["k", "in gradients", "each further step"], _steps(result["iterations"]["gradients"])),
        "",
        "## Ten steps against the number of parameters d (perceptrons of growing width, Gauss-Newton)",
        "",
        *table(
            ["d", "seconds", "nanoseconds a parameter and step"],
            (
                [f"{dimension:,}", f"{value:.3f}", f"{1e9 * value / (10 * dimension):.1f}"]
                for dimension, value in sorted(result["dimensions"].items())
            ),
        ),
    ]


def _steps(gradients: Mapping[int, float]) -> Iterable[list[str]]:
    counts = sorted(gradients.items())
    for (count, value), before in zip(counts, [None, *counts], strict=False):
        further = f"{(value - before[1]) / (count - before[0]):.2f}" if before else ""
        yield [str(count), f"{value:.1f}", further]


def cell(case: Mapping[str, Any], name: str) -> str:
    """Return one entry of the table; the gradient's row gives seconds and megabytes."""
    seconds, peak = case["seconds"][name], case["peak_bytes"].get(name)
    if isinstance(seconds, str):
        return seconds
    if name == GRADIENT:
        return f"{1e3 * seconds:.3g} ms" + (f" ({peak / 1e6:.0f} MB)" if peak else "")
    unit = case["peak_bytes"].get(GRADIENT)
    memory = f" ({peak / unit:.1f})" if peak and unit else ""
    return f"{seconds / case['seconds'][GRADIENT]:.2f}{memory}"


def main(
    output: Annotated[Path, typer.Option(help="Where to write, without the suffixes .md and .json.")],
    models: Annotated[list[str] | None, typer.Option("--model", help="Which cases; all by default.")] = None,
    repetitions: Annotated[int, typer.Option(help="Of each way.")] = 7,
    memory: Annotated[bool, typer.Option(help="Also measure memory, in a process for each way.")] = True,
    factor: Annotated[int, typer.Option(min=1, help="So many times the examples, for an accelerator.")] = 1,
) -> None:
    """Measure and write OUTPUT.md and OUTPUT.json."""
    torch.set_num_threads(1)
    cases = {}
    for model in models or list(CASES):
        case = replace(CASES[model], num_examples=factor * CASES[model].num_examples)
        console.log(case.title)
        seconds = measure_times(case, repetitions)
        cases[case.title] = {"seconds": seconds, "peak_bytes": measure_peaks(case) if memory else {}}
    console.log("time against k and d")
    small = replace(CASES["cnn"], num_examples=factor * CASES["cnn"].num_examples)
    result = {
        "machine": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "processor": platform.machine(),
            "device": "CPU" if DEVICE.type == "cpu" else torch.cuda.get_device_name(),
            "clock": "CPU time" if DEVICE.type == "cpu" else "time until the accelerator had finished",
        },
        "repetitions": repetitions,
        "cases": cases,
        "iterations": {
            "case": small.title,
            "gradients": time_against_iterations(small, (1, 2, 5, 10, 20, 40)),
        },
        "dimensions": time_against_dimension((50, 100, 200, 400, 800)),
    }
    write(output, page(result), result)


if __name__ == "__main__":
    typer.run(main)
