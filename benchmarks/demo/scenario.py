"""The story that `flower-unlearn demo` tells: what is learnt, who asks to be forgotten, and when."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.operations.flower_control import ConfigValue
from strategies.settings.run_config import RunSettings
from unlearning.errors import ConfigurationError
from unlearning.methods.registry import check_supports, method_named
from unlearning.requests import Granularity, Target
from unlearning.tasks import load_site

ROUNDS_BEFORE = 3
"""The request is filed when so many training rounds are over."""
ROUNDS_AFTER = 1
"""Training goes on for so many rounds after the deletion."""

SETTINGS: Mapping[str, ConfigValue] = {
    "dataset": "digits",
    "model": "mlp",
    # A strong label skew: whoever leaves takes digits along that nobody else has, so that forgetting
    # shows. The seed is one at which three clients hold comparable amounts of data.
    "partition": "dirichlet",
    "alpha": 0.1,
    "seed": 3,
    "local-epochs": 5,
    "learning-rate": 0.1,
    "momentum": 0.5,
    "rounds": ROUNDS_BEFORE + ROUNDS_AFTER,
    "recovery-max-rounds": 2,
    # The digits that nobody else has are lost to any model, the retrained one too.
    "max-score-loss": 60.0,
    "federation": "demo",
}

LIVE: Mapping[str, ConfigValue] = {"rounds": 0, "transport": "session", "round-interval-s": 0.5}
"""What differs on real processes: training goes on until the demo ends, at a pace that can be followed."""

PRIVATE: Mapping[str, ConfigValue] = {
    "privacy": "client",
    "privacy-noise-multiplier": 4.0,
    "privacy-clip-norm": 0.05,
    "max-round-score-loss": 0.0,  # the noise is larger than what so few clients learn
}
"""What a demo of `dp-covered` needs."""

CALM: Mapping[str, ConfigValue] = {"round-interval-s": 3.0}
"""What differs in a federation that stays when the story has been told."""

ALONE = 0.9
"""Who has this share of a digit's pictures is said to hold the digit nearly alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happens in a demo.

    target: the client that asks to be forgotten; `num_examples` of all `num_examples_all` pictures are
        its own, and nearly all pictures of the digits `alone`.
    """

    num_clients: int
    method: str
    target: Target
    num_examples: int
    num_examples_all: int
    alone: tuple[int, ...]
    secure_aggregation: bool = False

    @property
    def run_config(self) -> dict[str, ConfigValue]:
        """Return the run's settings; the request is not among them."""
        secure: dict[str, ConfigValue] = {"secure-aggregation": True} if self.secure_aggregation else {}
        private = PRIVATE if method_named(self.method).info.rests_on_training else {}
        return {**SETTINGS, "num-clients": self.num_clients, **secure, **private}

    @property
    def scripted_request(self) -> str:
        """Return the request as a run's own configuration files it."""
        return f"at={ROUNDS_BEFORE} client={self.target.client_id} method={self.method}"


def make_scenario(num_clients: int, method: str, *, secure_aggregation: bool = False) -> Scenario:
    """Deal the data out and find who shall leave: see `_leaving`.

    Raises:
        ConfigurationError: there are too few clients or too many.
        UnknownMethod: there is no such method.
        UnsupportedRequest: the method cannot forget a client.
    """
    if num_clients < 2:
        raise ConfigurationError(
            [f"--clients must be 2 or more: one leaves, others stay; got {num_clients}."]
        )
    if secure_aggregation and num_clients < 4:
        raise ConfigurationError(
            [f"--clients must be 4 or more: one leaves, and a sum is over three; got {num_clients}."]
        )
    chosen = method_named(method)
    settings = RunSettings.from_run_config({**SETTINGS, "num-clients": num_clients})
    labels = [load_site(settings.task(), client).train.targets.numpy() for client in range(num_clients)]
    counts = np.stack([np.bincount(own, minlength=10) for own in labels])
    leaving = _choose_leaver(counts)
    target = Target(Granularity.CLIENT, str(leaving))
    check_supports(chosen, target)
    return Scenario(
        num_clients=num_clients,
        method=method,
        target=target,
        num_examples=int(counts[leaving].sum()),
        num_examples_all=int(counts.sum()),
        secure_aggregation=secure_aggregation,
        alone=tuple(int(digit) for digit in np.flatnonzero(_digits_held_alone(counts)[leaving])),
    )


def _choose_leaver(counts: NDArray[Any]) -> int:
    """Return who shall leave, of `counts` of shape (clients, digits).

    Of the clients with at least an average number of pictures, whose update therefore weighs, the one
    whose data are to the largest part its alone.
    """
    sizes = counts.sum(axis=1)
    shares = np.where(_digits_held_alone(counts), counts, 0).sum(axis=1) / sizes
    return int(np.argmax(np.where(sizes >= sizes.mean(), shares, -1.0)))


def _digits_held_alone(counts: NDArray[Any]) -> NDArray[Any]:
    """Return which digits each client holds nearly alone, shape (clients, digits)."""
    alone: NDArray[Any] = counts > ALONE * counts.sum(axis=0)
    return alone
