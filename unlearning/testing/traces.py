"""Looks for ids and inputs of forgotten examples in all that a method keeps, sends and answers."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from unlearning.requests import Granularity
from unlearning.runtime.json_codec import to_plain
from unlearning.tasks.task import forgotten_mask
from unlearning.testing.deletions import Deletion

Content = tuple[str, Mapping[str, NDArray[Any]], Mapping[str, Any]]
"""Where it was found, arrays by name, and values as JSON has them."""


def traces_of(deletion: Deletion) -> str:
    """Return the first trace of a forgotten example in a run, in words; empty where there is none."""
    ids: set[str] = set()
    inputs: set[tuple[float, ...]] = set()
    for client, examples in deletion.sites.items():
        if deletion.target.client_id in (None, client):
            gone = examples.select(forgotten_mask(examples, deletion.target.forget))
            ids |= set(gone.ids.tolist())
            inputs |= {tuple(row) for row in gone.inputs.double().tolist()}
    for where, arrays, values in [*_contents(deletion), *_rewritten(deletion)]:
        text = json.dumps(to_plain(dict(values)), default=str)
        text += "".join(str(array) for array in arrays.values() if array.dtype.kind in "US")
        named = sorted(one for one in ids if one in text)
        if named:
            return f"{where} names {named[0]}"
        for name, array in arrays.items():
            if _has_rows(array, inputs):
                return f"{where} holds an example's inputs in {name}"
    gone_whole = deletion.target.client_id if deletion.target.granularity is Granularity.CLIENT else None
    kept = deletion.recorded_problem.kept
    if kept is not None and gone_whole in kept.next_store.list_keys():
        return f"what it rewrites for later has an entry of {gone_whole}, who is forgotten"
    return ""


def _contents(deletion: Deletion) -> Iterator[Content]:
    run = deletion.recorded
    for state in run.states:
        yield (
            "the state",
            {"parameters": state.parameters, **state.arrays},
            {**state.values, **state.findings},
        )
    for instructions in run.instructions:
        for client, one in instructions.items():
            yield f"the instruction to {client}", {"model": one.model, **one.arrays}, one.values
    for replies in run.replies:
        for client, reply in replies.items():
            yield f"the answer of {client}", {"vector": reply.vector, **reply.arrays}, reply.values


def _rewritten(deletion: Deletion) -> Iterator[Content]:
    kept = deletion.recorded_problem.kept
    if kept is not None:
        for key in kept.next_store.list_keys():
            for number in kept.next_store.rounds(key):
                yield "what it rewrites for later", kept.next_store.load(key, number), {}


def _has_rows(array: NDArray[Any], inputs: set[tuple[float, ...]]) -> bool:
    """Tell whether two neighbouring numbers are an example's inputs, which have two."""
    if array.dtype.kind != "f" or array.size < 2:
        return False
    pairs = sliding_window_view(array.astype(np.float64).ravel(), 2)
    return any(tuple(pair) in inputs for pair in pairs.tolist())
