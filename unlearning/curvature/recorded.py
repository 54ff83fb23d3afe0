"""Jv without the forward pass: the derivative's own operations, recorded once and replayed for each vector.

Forward mode computes the outputs again with every Jv, about half of its time, though at fixed weights they do
not change. `torch.func.linearize` records what is linear in the vector and keeps the rest as constants. That
takes as long as 5 to 30 gradients, so it pays only where one graph serves many products, and it holds a further
copy of the activations.

Recording decomposes some operations (normalisation, attention) into others that round differently. A product
must not depend on how many came before it (a solve resumed after a crash, or carried by another transport, has
another count), so a recording is used only where it gives forward mode's answer bit for bit. A few outputs may
agree by chance, so it is tried on random vectors until many have been compared.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import linearize

from unlearning.curvature.local_loss import LocalLoss

_log = logging.getLogger(__name__)

PushForward: TypeAlias = Callable[[Sequence[Tensor]], Tensor]

COMPARED_ENTRIES = 512
"""Of a tiny network's recording that rounds differently, a fifth to a half of 60 products agreed all the same."""


def recorded_derivative(
    local: LocalLoss, function: Callable[[Mapping[str, Tensor]], Tensor], forward: PushForward
) -> PushForward | None:
    """Return the derivative of `function` of the weights as a recording, or None where forward mode has to
    stay.

    forward: Jv by forward mode, which the recording must give to the bit.
    """

    def of_weights(*weights: Tensor) -> Tensor:
        return function(dict(zip(local.names, weights, strict=True)))

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own about modules that it has itself deprecated
            _, derivative = linearize(of_weights, *(parameter.detach() for parameter in local.trainable))
    except Exception as exc:  # noqa: BLE001 - whatever a user's model does to the recorder, forward mode stays
        _log.info("The model's derivative cannot be recorded (%s); forward mode stays.", exc)
        return None

    def push_forward(parts: Sequence[Tensor]) -> Tensor:
        with torch.no_grad():
            pushed: Tensor = derivative(*parts)
            return pushed

    if not _same_to_the_bit(push_forward, forward, local.trainable):
        _log.info("The recorded derivative rounds differently from forward mode, which stays.")
        return None
    return push_forward


def _same_to_the_bit(one: PushForward, other: PushForward, weights: Sequence[Tensor]) -> bool:
    """Return whether both give the same on random vectors, in COMPARED_ENTRIES entries or a little more."""
    generator = torch.Generator(weights[0].device).manual_seed(0)
    compared = 0
    while compared < COMPARED_ENTRIES:
        vector = [torch.empty_like(part).normal_(generator=generator) for part in weights]
        expected = other(vector)
        if not torch.equal(one(vector), expected):
            return False
        compared += expected.numel()
    return True
