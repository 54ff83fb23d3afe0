"""What an answer changes of the model, never held as a whole: it is computed in chunks wherever it is looked at."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unlearning.parameters import Vector, parts


@dataclass(frozen=True, eq=False)
class Change:
    """`after` − `before` (d,) in their dtype, or `after` itself; zero at the positions `zeros`, which ascend."""

    after: Vector
    before: Vector | None = None
    zeros: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    @cached_property
    def norm(self) -> float:
        """The Euclidean norm, computed in float64."""
        with np.errstate(over="ignore", invalid="ignore"):  # the numbers are a client's
            return math.sqrt(sum(float(part @ part) for part in self.parts()))

    def parts(self) -> Iterator[NDArray[np.float64]]:
        """Yield the change in float64, a chunk at a time."""
        for part in parts(len(self.after)):
            after = self.after[part]
            found = (after if self.before is None else after - self.before[part]).astype(np.float64)
            first, last = np.searchsorted(self.zeros, (part.start, part.stop))
            found[self.zeros[first:last] - part.start] = 0
            yield found
