"""The ids of samples that requests name, in a table of their own: read for one request at a time, and given back."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import sqlalchemy as sa

from server.ledger import schema
from unlearning.pseudonyms import SubjectKeys
from unlearning.requests import Granularity, Target, hash_of_text, list_ids

_table = schema.request_samples


def insert(connection: sa.Connection, number: int, values: Mapping[str, object]) -> None:
    """Write the ids of a new request down; `values_of` them, made before the write lock is taken."""
    connection.execute(sa.insert(_table).values({"request_number": number, **values}))


def values_of(sample_ids: Iterable[str]) -> dict[str, object]:
    """Return the columns for a list of ids."""
    listed = list_ids(sample_ids)
    return {"sha256": hash_of_text(listed), "sample_ids": listed}


def load(connection: sa.Connection, number: int) -> frozenset[str]:
    """Return the ids of a request; none where it names none, or has given them back."""
    text = connection.scalar(sa.select(_table.c.sample_ids).where(_table.c.request_number == number))
    return frozenset() if text is None else frozenset(json.loads(text))


def load_target(connection: sa.Connection, number: int, target: Target, keys: SubjectKeys | None) -> Target:
    """Return `target` of a request with its ids, keyed where there are keys."""
    if target.granularity is not Granularity.SAMPLE or target.sample_ids:
        return target
    found = replace(target, sample_ids=load(connection, number))
    return found if keys is None else keys.target(found)


def give_back(connection: sa.Connection, number: int) -> None:
    """Erase the ids of a request that was cancelled or has failed for good; their number and hash stay."""
    connection.execute(sa.update(_table).where(_table.c.request_number == number).values(sample_ids=None))


def names_same(connection: sa.Connection, number: int, values: Mapping[str, object]) -> bool:
    """Return whether the request in row `number` names these samples; by their hash, which outlives the ids."""
    known = connection.scalar(sa.select(_table.c.sha256).where(_table.c.request_number == number))
    return known is None or known == values["sha256"]
