"""FLOPs are those that PyTorch's own counter counts, and nothing of its compiler is imported for them."""

import subprocess
import sys

import pytest
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.unlearning.tasks.test_models import NAMES, tiny
from unlearning.methods.costs import FlopCounter

COUNTED = """
import sys, torch
from unlearning.methods.costs import FlopCounter
with FlopCounter() as counter:
    torch.nn.Linear(3, 2)(torch.ones(5, 3)).sum().backward()
print(counter.total, "torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("name", NAMES)
def test_every_model_has_as_many_as_pytorch_counts(name: str) -> None:
    """Forward and backward, convolutions and attention among them."""
    with FlopCounter() as counter:
        tiny(name)[1].backward()
    with FlopCounterMode(display=False) as theirs:
        tiny(name)[1].backward()
    assert counter.total == theirs.get_total_flops() > 0


@pytest.mark.slow
@pytest.mark.long
def test_the_compiler_stays_away() -> None:
    """In a process of its own: two products, forward and for the weights' gradient."""
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["120", "False"]
