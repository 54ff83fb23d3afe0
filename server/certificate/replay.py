"""Executes the server step of a deletion again, from what was kept of it: same inputs, same model?

It shows that the model that the federation went on with is what the method makes of these replies, and of
nothing else. It cannot show that the clients computed their replies as they should.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from server.certificate.document import Certificate
from server.certificate.replay_inputs import (
    Begun,
    kept_inputs,
    read_begin,
    read_exchanges,
    read_kept,
    targets_of,
)
from unlearning.errors import CertificateError, FlowerUnlearningError
from unlearning.methods.method import Method, PreparedStore, Problem
from unlearning.methods.registry import method_named, validated_parameters
from unlearning.parameters import content_hash
from unlearning.tasks import make_task


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it: the hashes of the model that it began with and of the one it made."""

    hash_before: str
    hash_unlearned: str
    num_exchanges: int


def check_inputs(directory: Path, certificate: Certificate) -> None:
    """Refuse other files than those that the certificate names; nothing of them is read before.

    Raises:
        CertificateError: none are named, one is missing, one is more, or one is another.
    """
    named = {file.name: file.sha256 for file in certificate.replay.files}
    if not named:
        raise CertificateError(f"The certificate names no inputs: {certificate.replay.note}.")
    if not directory.is_dir():
        raise CertificateError(
            f"There is no directory {directory}. Name the one that holds begin.npz, such as "
            f"STATE_DIR/replay/{certificate.replay.directory}; it may have been erased."
        )
    found = {file.name: file.sha256 for file in kept_inputs(directory, "").files}
    for name in sorted({*named, *found}):
        if name not in found:
            raise CertificateError(f"{name} is missing in {directory}; the certificate names it.")
        if name not in named:
            raise CertificateError(f"{name} in {directory} is not named by the certificate.")
        if named[name] != found[name]:
            raise CertificateError(f"{name} in {directory} is not the file that the certificate names.")


def replay(directory: Path, noise_key: bytes | None = None) -> Replayed:
    """Execute the method's server half with the kept replies, exchange for exchange.

    noise_key: what the method's noise was derived from, if it adds any.

    Raises:
        CertificateError: the inputs cannot be read, or do not lead to an unlearned model.
    """
    begun = read_begin(directory)
    number = 0
    try:
        method, kept = method_named(begun.method), read_kept(directory, begun)
        first = _problem(begun, method, begun.problem, kept)
        state = method.begin(replace(first, noise_key=noise_key), begun.parameters)
        for exchanged in read_exchanges(directory):
            number += 1
            if state.finished:
                raise CertificateError(
                    f"The method has finished before exchange {number}, which was kept too."
                )
            state = method.aggregate(
                _problem(begun, method, exchanged.problem, kept), state, exchanged.replies
            )
    except CertificateError:
        raise
    except (FlowerUnlearningError, KeyError, TypeError, ValueError) as exc:
        raise CertificateError(
            f"The replay of {begun.method} broke off in exchange {number}: {type(exc).__name__}: {exc}"
        ) from exc
    if not state.finished:
        raise CertificateError(f"The method has not finished after {number} exchanges; inputs are missing.")
    return Replayed(content_hash(begun.parameters), content_hash(state.parameters), number)


def _problem(begun: Begun, method: Method, value: Mapping[str, Any], kept: PreparedStore | None) -> Problem:
    """As `UnlearningStrategy.instructions` makes it."""
    settings = begun.settings
    return Problem(
        task=make_task(settings.task()),
        seed=value["seed"],
        rounds_trained=value["rounds_trained"],
        targets=targets_of(value),
        retained=tuple(value["retained"]),
        num_examples=value["num_examples"],
        schedule=settings.training,
        training=settings.training(value["round"], augment=False),
        parameters=validated_parameters(method, value["parameters"]),
        round=value["round"],
        kept=kept,
    )
