"""Measuring a model on the clients' own data: what is made of the clients' answers.

A client computes per-example values locally and sends sums and the values of a bounded random sample, without
ids: what the attacks need and no more. docs/verification.md lists everything that leaves a client.
"""

from collections.abc import Callable, Mapping
from logging import getLogger

from flwr.app import RecordDict

from strategies.messages import named_arrays
from unlearning.errors import DataError, UpdateRefused
from unlearning.verification.observations import Observations, merge

_log = getLogger(__name__)


def merged(
    contents: Mapping[str, RecordDict],
    name: str,
    check_count: Callable[[str, int], None] = lambda _client, _count: None,
) -> Observations | None:
    """What all clients observed on the set `name`, in the order of client ids; None if nobody did.

    check_count: raises `UpdateRefused` for a client that counts more examples than it may, which would outweigh others.
    """
    found: list[Observations] = []
    for client in sorted(contents):
        try:
            arrays = named_arrays(contents[client])
            own = {
                key.removeprefix(f"{name}."): value
                for key, value in arrays.items()
                if key.startswith(f"{name}.")
            }
            if own:
                observations = Observations.from_arrays(own)
                check_count(client, observations.num_examples)
                merge([*found, observations])  # what does not go with the others is found out here
                found.append(observations)
        except (DataError, UpdateRefused, KeyError, ValueError, TypeError) as exc:
            _log.warning("The measurement of client %s is malformed and left out: %s", client, exc)
    return merge(found) if found else None
