"""What the accountant of private training counts, as plain values: a site's memory has them without its libraries."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateRounds:
    """A number of rounds with the same noise: z and q of `unlearning.certified.private_training`, and how many."""

    noise_multiplier: float
    sampling: float
    count: int
