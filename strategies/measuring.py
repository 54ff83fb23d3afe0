"""Measuring a model on the clients' own data: what is asked, and what is made of the answers.

A client computes per-example values locally and sends sums and a bounded random sample of losses and
confidences, without ids: what the attacks need and no more.
"""

from collections.abc import Mapping

from logging import getLogger

from flwr.app import ArrayRecord, Message, RecordDict

from strategies.messages import MEASURE, compose, exclusion_values, named_arrays
from strategies.roster import Member
from unlearning.errors import DataError
from unlearning.requests import Forget
from unlearning.verification.observations import Observations, merge

_log = getLogger(__name__)

SETS = ("retained", "forgotten", "test")


def measure_messages(
    members: Mapping[str, Member],
    arrays: ArrayRecord,
    forgets: Mapping[str, tuple[Forget, Forget]],
    *,
    server_round: int,
    samples: int,
    is_forgetting: bool = False,
) -> dict[str, Message]:
    """Ask `members` to measure the model.

    forgets: for each client what is excluded for good (it becomes a tombstone at the client) and
        what counts as the forgotten set of this measurement.
    is_forgetting: whether this measurement belongs to a deletion, so that a client that was
        forgotten as a whole still answers for its forgotten data.
    """
    return {
        client: compose(
            member.node_id,
            MEASURE,
            server_round,
            {
                **exclusion_values(forgets[client][0]),
                "forget": forgets[client][1].to_json(),
                "samples": samples,
                "is-forgetting": is_forgetting,
            },
            arrays,
        )
        for client, member in members.items()
    }


def merged(contents: Mapping[str, RecordDict], name: str) -> Observations | None:
    """What all clients observed on the set `name`, in the order of client ids; None if nobody did."""
    found = []
    for client in sorted(contents):
        arrays = named_arrays(contents[client])
        own = {
            key.removeprefix(f"{name}."): value for key, value in arrays.items() if key.startswith(f"{name}.")
        }
        if not own:
            continue
        try:
            found.append(Observations.from_arrays(own))
        except (DataError, KeyError, ValueError) as exc:
            _log.warning("The measurement of client %s is malformed and left out: %s", client, exc)
    return merge(found) if found else None
