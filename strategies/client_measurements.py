"""Measuring a model on the clients' own data: reading the clients' answers.

A client computes per-example values locally and sends sums and the values of a bounded random sample, without
ids: what the attacks need and no more. docs/explanation-membership-attacks.md lists everything that leaves a client.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial

import numpy as np
from flwr.app import RecordDict

from strategies.exchange import read_each
from strategies.messages import MAX_EXAMPLES, Json, named_arrays
from strategies.update_limits import CheckCount
from unlearning.errors import UpdateRefused
from unlearning.requests import NOTHING, Forget
from unlearning.runtime.json_codec import to_plain
from unlearning.verification.observations import Observations, merge

_LARGEST_SUM = 1e100
"""The sums of all clients can be added up and squared below it; no loss of 32 bits gets near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientObservations:
    """What clients observed on one set: by client, merged (None if none did), and which answers were refused."""

    by_client: Mapping[str, Observations] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def merged(self) -> Observations | None:
        """All clients' as one, in the order of client ids."""
        return merge(self.by_client.values()) if self.by_client else None


def _any_count(_client: str, _count: int) -> None:
    pass


def measuring(
    samples: int, forgets: Mapping[str, Forget] | None = None, also: Json | None = None
) -> Callable[[str], Json]:
    """Return what a message that asks for a measurement says to each client.

    samples: the most per-example values that are sent. forgets: what each client counts as its forgotten set.
    also: other values.
    """
    named = forgets or {}
    return lambda client: {
        **(also or {}),
        "forget": to_plain(named.get(client, NOTHING)),
        "samples": samples,
    }


def read_observations(
    contents: Mapping[str, RecordDict], name: str, check_count: CheckCount = _any_count
) -> ClientObservations:
    """Read what every client observed on the set `name`, and refuse what makes no sense.

    A client whose figures are no numbers is refused too, unless all are like that: then the model is.
    """
    read, refused = read_each(contents, partial(_read_one, name, check_count))
    present = {client: one for client, one in read.items() if one is not None}
    sound = {client: one for client, one in present.items() if _is_finite(one)}
    if sound:
        refused |= dict.fromkeys(set(present) - set(sound), "Its figures are not numbers.")
        present = sound
    return ClientObservations(by_client=present, refused=dict(sorted(refused.items())))


def mean_figures(
    contents: Mapping[str, RecordDict], check_count: CheckCount, metric_names: Sequence[str] = ()
) -> dict[str, float]:
    """Return examples, mean loss and mean score over all clients' training and test data, where they have any.

    metric_names: of the task's metrics of whole sets, of which the weighted mean of the clients' own is returned.
    """
    found: dict[str, float] = {}
    for name, kind in (("train", "retained"), ("test", "test")):
        merged = read_observations(contents, kind, check_count).merged
        if merged is not None and merged.num_examples:
            found[f"{name}-examples"] = merged.num_examples
            found[f"{name}-loss"] = merged.loss_sum / merged.num_examples
            found[f"{name}-score"] = merged.score_sum / merged.num_examples
            found |= {f"{name}-{key}": value for key, value in merged.named_metrics(metric_names).items()}
    return found


def _read_one(name: str, check_count: CheckCount, client: str, content: RecordDict) -> Observations | None:
    """Read a client's observations on the set `name`; None where it has none.

    Raises:
        UpdateRefused: sums or counts are beyond what any client has.
        DataError: arrays that do not belong together.
    """
    arrays = named_arrays(content)
    own = {key.removeprefix(f"{name}."): value for key, value in arrays.items() if key.startswith(f"{name}.")}
    if not own:
        return None
    found = Observations.from_arrays(own)
    largest = max(abs(found.loss_sum), abs(found.score_sum))
    if found.num_examples > MAX_EXAMPLES or _LARGEST_SUM < largest < np.inf:
        raise UpdateRefused(f"It counts {found.num_examples:.3g} examples and sums of {largest:.3g}.")
    check_count(client, found.num_examples)
    merge([found])
    return found


def _is_finite(one: Observations) -> bool:
    columns = [np.array([one.loss_sum, one.score_sum]), one.losses, one.confidences]
    for group in (one.details, one.outputs):
        columns += [getattr(group, item.name) for item in fields(group)] if group is not None else []
    return all(np.isfinite(column).all() for column in columns)
