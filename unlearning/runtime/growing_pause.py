"""The pause before something that has failed is tried again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingPause:
    """A pause of `first_s` after a failure, then `factor` times as long each time, `longest_s` at most; without end."""

    first_s: float
    longest_s: float
    factor: float = 2.0

    def after(self, num_failures: int) -> float:
        """Return the seconds to pause after `num_failures` in a row, 1 or more."""
        # The exponent is bounded because something may fail for weeks.
        return float(min(self.longest_s, self.first_s * self.factor ** min(num_failures - 1, 60)))
