"""A site's part in rounds of secure aggregation: its identity, what it keeps of a round, and its masked answers.

    secure-key = "…/secure-key.pem"         the site's own Ed25519 key (PEM)
    secure-roster = "…/secure-roster"       a folder with the public key of every client, CLIENT-ID.pem
    min-cohort = 5                          the fewest clients that a sum may be over (3)
    require-secure-aggregation = true       answer nothing about the site's data in the clear

These are of the node's configuration, so the server cannot change them. Clients of a simulation have no files: their
keys follow from the run's seed, which protects nothing, as everything is in one place there.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from functools import lru_cache
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from client.memory import SECURE_ROUND, state_dir_of
from client.site_work import ClientWork, client_id_of
from strategies.client_measurements import read_observations
from strategies.joint_exchange import MEASURE_TOO
from strategies.messages import (
    ARRAYS,
    MEASURE,
    SECURE,
    TRAIN,
    UNLEARN,
    Json,
    arrays_content,
    by_preparation,
    instruction_of,
    model_record,
    records_of,
    reply_of,
    told_values,
    vector_of,
)
from strategies.secure_exchange import sequence_of, work_hash
from unlearning.errors import CheckpointError, ConfigurationError, SecureAggregationError
from unlearning.methods.method import Reply
from unlearning.methods.preparation import training_by
from unlearning.methods.registry import method_named
from unlearning.runtime.durable_files import write_atomically
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.secure_aggregation import client_round
from unlearning.secure_aggregation.addends import SumTerm, addend
from unlearning.secure_aggregation.client_round import ClientRound, Identity
from unlearning.secure_aggregation.ring import Ring
from unlearning.secure_aggregation.terms import (
    LEAVING,
    SMALLEST_COHORT,
    Advertisement,
    RoundTerms,
    check_repeated,
)
from unlearning.verification.masked_counts import SETS, to_counts

_log = getLogger(__name__)

_ANSWERED, _ROUND = "answered", "round"
_SUMMED, _LEAVING = "summed", "leaving"
"""Of sums of data: the clients of the last one that was confirmed; those that the one under way is to lack."""
_WAITING = (
    "Records of this site wait for their deletion, and a sum without them, beside the one before, would show them. "
    "Training goes on after the deletion."
)


def refuse_in_the_clear(message: Message, node_config: Mapping[str, Any]) -> None:
    """Refuse a message whose answer would not be masked, at a site that demands it; or would be in part.

    Raises:
        SecureAggregationError: says what to set.
    """
    if is_secure(message) and MEASURE_TOO in told_values(message.content):
        raise SecureAggregationError(
            "Work under masks and a measurement in the clear do not go together.", code="clear-refused"
        )
    if node_config.get("require-secure-aggregation") in (True, "true") and not is_secure(message):
        raise SecureAggregationError(
            "This site answers under secure aggregation only (require-secure-aggregation). Set secure-aggregation = "
            "true in the run.",
            code="clear-refused",
        )


def is_secure(message: Message) -> bool:
    """Tell whether a message's answer is to be masked."""
    return SECURE in told_values(message.content)


def answer_stage(message: Message, context: Context) -> RecordDict:
    """Return the answer to a stage without work; the round as it stands then is durable before it leaves.

    Raises:
        SecureAggregationError: the round is refused; says why.
        ConfigurationError: the site's keys cannot be used.
    """
    told, own, known = told_values(message.content)[SECURE], identity_of(context), _load(context)
    if told["stage"] == "advertise":
        terms, answered = from_plain(RoundTerms, told["terms"]), known.get(_ANSWERED, 0)
        state, keys = client_round.advertise(own, terms, answered=answered, entropy=os.urandom)
        return _kept(context, state, {"keys": to_plain(keys)}, known)
    state = _round(known)
    match told["stage"]:
        case "share":
            members = from_plain(list[Advertisement], told["members"])
            state, sealed = client_round.share(state, own, members, os.urandom)
            return _kept(context, state, {"sealed": to_plain(sealed)}, known)
        case "confirm":
            survivors = from_plain(list[str], told["survivors"])
            state, signature = client_round.confirm(state, own, survivors)
            known = _confirmed(known, survivors, own.min_cohort)
            return _kept(context, state, {"signature": to_plain(signature)}, known)
        case "unmask":
            state, shares = client_round.unmask(state, own, from_plain(dict[str, bytes], told["signatures"]))
            return _kept(context, state, {"shares": to_plain(shares)}, known)
    raise SecureAggregationError(f"There is no stage {told['stage']!r:.40}.", code="other-stage")


def masked(content: RecordDict, message: Message, local: ClientWork, context: Context) -> RecordDict:
    """Return the answer to work with its numbers under masks, and nothing else of it.

    Raises:
        SecureAggregationError: the message belongs to another round, or the round is refused.
        DataError: the numbers cannot be part of a sum.
    """
    known = _load(context)
    state = _round(known)
    kind = message.metadata.message_type
    if (sequence_of(message), kind) != (state.terms.sequence, state.terms.purpose):
        raise SecureAggregationError("The work is of another round than the keys.", code="other-round")
    leaving = _leaving(message, local)
    if leaving is not None and kind == TRAIN and known.get(_SUMMED) and local.forget_named("withheld"):
        raise SecureAggregationError(_WAITING, code="cohort-changed")
    values = _values(content, message, local, state.terms)
    sealed = from_plain(dict[str, bytes], local.values[SECURE]["sealed"])
    state, hidden = client_round.mask(
        state, identity_of(context), sealed, work_hash(kind, message.content), values
    )
    _kept(context, state, {}, {**known, _LEAVING: leaving})
    return RecordDict({**arrays_content({}, {}), ARRAYS: model_record(hidden)})  # type: ignore[arg-type]


def _values(content: RecordDict, message: Message, local: ClientWork, terms: RoundTerms) -> Ring:
    """Return what an answer adds to the round's sum."""
    if message.metadata.message_type == MEASURE:
        found = {name: read_observations({"own": content}, name).merged for name in SETS}
        counts = to_counts({name: one for name, one in found.items() if one is not None})
        return np.append(counts, 1).view(np.uint64)
    reply = reply_of(content)
    return addend(local.task, _terms(reply, message, local), reply.metrics.get("loss", 0.0), terms)


def _terms(reply: Reply, message: Message, local: ClientWork) -> list[SumTerm]:
    if message.metadata.message_type == UNLEARN:
        name, instruction = instruction_of(message)
        return method_named(name).sum_terms(instruction, reply)
    update = reply.vector - vector_of(records_of(message.content, ArrayRecord)[ARRAYS])
    prepared, returned = local.settings.preparations(), by_preparation(reply.arrays)
    own = next((returned[name] for name, one in prepared.items() if one.replaces_training), {})
    return training_by(prepared.values()).sum_terms(update, reply.num_examples, own)


def _leaving(message: Message, local: ClientWork) -> list[str] | None:
    """Return the clients that a sum of data is said to lack; None where the sum is not of data itself."""
    if message.metadata.message_type == UNLEARN:
        name, instruction = instruction_of(message)
        return list(instruction.values.get(LEAVING, [])) if method_named(name).info.sums_data else None
    names = local.settings.preparations() if message.metadata.message_type == TRAIN else ()
    return [] if any(method_named(name).info.sums_data for name in names) else None


def _confirmed(known: Json, survivors: Collection[str], fewest: int) -> Json:
    """Return what is known once a sum is confirmed.

    Raises:
        SecureAggregationError: it is of data, and the sum before shows by it what a client holds.
    """
    leaving, before = known.get(_LEAVING), known.get(_SUMMED, [])
    if leaving is None:
        return known
    check_repeated(before, survivors, leaving=leaving, fewest=fewest)
    if gone := sorted(set(before) - set(survivors)):
        _log.warning("A sum lacks client(s) %s, of which the server says that they are forgotten.", gone)
    return {**known, _SUMMED: sorted(survivors), _LEAVING: None}


def _kept(context: Context, state: ClientRound, said: Json, known: Json) -> RecordDict:
    """Make durable where a round stands, in place of what is `known` of it; return what to send of it."""
    answered = state.terms.sequence if state.stage == "masked" else known.get(_ANSWERED, 0)
    text, directory = (
        json.dumps({**known, _ANSWERED: answered, _ROUND: to_plain(state)}),
        state_dir_of(context.node_config),
    )
    if directory is None:
        context.state[SECURE_ROUND] = ConfigRecord({_ROUND: text})
    else:
        write_atomically(directory / SECURE_ROUND, text.encode())
    return arrays_content({}, {SECURE: said})


def _load(context: Context) -> Json:
    """Return what is kept of the last round, whatever was forgotten since.

    Raises:
        CheckpointError: it is damaged; a round could be answered twice.
    """
    directory, text = state_dir_of(context.node_config), "{}"
    kept = records_of(context.state, ConfigRecord).get(SECURE_ROUND)
    if directory is None and kept is not None:
        text = str(kept[_ROUND])
    elif directory is not None and (directory / SECURE_ROUND).exists():
        text = (directory / SECURE_ROUND).read_text(encoding="utf-8")
    try:
        return dict(json.loads(text))
    except ValueError as exc:
        raise CheckpointError(f"{SECURE_ROUND} of this site is damaged. Restore it from a backup.") from exc


def _round(known: Json) -> ClientRound:
    found = known.get(_ROUND)
    if found is None:
        raise SecureAggregationError("No round of secure aggregation has begun here.", code="other-stage")
    return from_plain(ClientRound, found)


def identity_of(context: Context) -> Identity:
    """Return the site's identity, from the files that its configuration names.

    Raises:
        ConfigurationError: they are missing or cannot be used.
    """
    config = context.node_config
    key, roster = (str(config.get(name, "")) for name in ("secure-key", "secure-roster"))
    fewest = int(config.get("min-cohort", SMALLEST_COHORT))
    if key and roster:
        return _from_files(Path(key).expanduser(), Path(roster).expanduser(), fewest)
    is_virtual = state_dir_of(config) is None and "partition-id" in config
    if key or roster or not is_virtual or config.get("require-secure-aggregation"):
        raise ConfigurationError(
            [
                "secure-key, secure-roster: secure aggregation needs both in the node's configuration, this site's key "
                "and the folder of all clients' public keys (docs/how-to-use-secure-aggregation.md)."
            ]
        )
    return _simulated(client_id_of(context), int(config["num-partitions"]), context, fewest)


def _from_files(key: Path, roster: Path, fewest: int) -> Identity:
    try:
        private = load_pem_private_key(key.read_bytes(), None)
        publics = {path.stem: load_pem_public_key(path.read_bytes()) for path in sorted(roster.glob("*.pem"))}
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as exc:
        raise ConfigurationError(
            [f"secure-key, secure-roster: a file cannot be read as a key: {exc}."]
        ) from exc
    known = {
        name: one.public_bytes_raw() for name, one in publics.items() if isinstance(one, Ed25519PublicKey)
    }
    if not isinstance(private, Ed25519PrivateKey) or len(known) < len(publics):
        raise ConfigurationError(["secure-key, secure-roster: all keys must be of the kind Ed25519."])
    own = private.public_key().public_bytes_raw()
    names = [name for name, public in known.items() if public == own]
    if len(names) != 1:
        raise ConfigurationError(
            [f"secure-roster: {roster} must hold this site's own public key once, as CLIENT-ID.pem."]
        )
    return Identity(client=names[0], key=private.private_bytes_raw(), roster=known, min_cohort=fewest)


def _simulated(name: str, count: int, context: Context, fewest: int) -> Identity:
    """Return the identity of a client in a simulation, where all keys follow from the run's seed."""
    keys = {
        one: _simulated_key(f"{context.run_config.get('seed', 0)} {one}")
        for one in {name, *map(str, range(count))}
    }
    roster = {one: public for one, (_, public) in keys.items()}
    return Identity(client=name, key=keys[name][0], roster=roster, min_cohort=fewest)


@lru_cache(maxsize=4096)
def _simulated_key(name: str) -> tuple[bytes, bytes]:
    key = hashlib.sha256(f"simulated {name}".encode()).digest()
    return key, Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
