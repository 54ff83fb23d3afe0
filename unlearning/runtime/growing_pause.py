"""The pause before something that has failed is tried again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingPause:
    """A pause of `first_s` after a failure, then twice as long each time, `longest_s` at most; without end."""

    first_s: float
    longest_s: float

    def after(self, num_failures: int) -> float:
        """Return the seconds to pause after so many failures in a row, 1 or more."""
        # The exponent is bounded because something may fail for weeks.
        return float(min(self.longest_s, self.first_s * 2.0 ** min(num_failures - 1, 60)))
