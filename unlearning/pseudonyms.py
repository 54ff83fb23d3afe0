"""Keyed hashes in the place of sample ids, so that a list of them says nothing to who lacks the key.

Ids of samples are guessable (a patient's number, a count), so a plain hash of one hides nothing. The operator has
one random key; each client's own key is derived from it, and only that one travels to the client, which hashes the
ids of its own samples to see which are meant. A keyed id says what it is: `hmac:` and 128 bits of HMAC-SHA256 under
the client's key, so lists of plain ids from before go on working as well.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from unlearning.requests import Forget, Target

PREFIX = "hmac:"
# 2**-88 is then the chance that two of a million ids share one.
_NUM_BYTES = 16


@dataclass(frozen=True, slots=True)
class SubjectKeys:
    """The operator's key, from which each client's own is derived."""

    master: bytes

    def __post_init__(self) -> None:
        assert len(self.master) >= 16, "a key that can be guessed hides nothing"

    @property
    def identity(self) -> str:
        """What tells this key from another one, and nothing else of it."""
        return hmac.digest(self.master, b"identity", "sha256").hex()[:16]

    def of(self, client_id: str) -> bytes:
        """Return the key of one client."""
        return hmac.digest(self.master, b"client\0" + client_id.encode(), "sha256")

    def target(self, target: Target) -> Target:
        """Return `target` with keyed ids; those that are keyed stay."""
        if target.client_id is None or all(map(is_keyed, target.sample_ids)):
            return target
        return replace(target, sample_ids=keyed_ids(self.of(target.client_id), target.sample_ids))


def is_keyed(sample_id: str) -> bool:
    """Return whether an id is a keyed one."""
    return sample_id.startswith(PREFIX)


def keyed_id(key: bytes, sample_id: str) -> str:
    """Return the keyed form of an id under a client's key; of a keyed one itself."""
    if is_keyed(sample_id):
        return sample_id
    digest = hmac.digest(key, sample_id.encode(), "sha256")[:_NUM_BYTES]
    return PREFIX + urlsafe_b64encode(digest).rstrip(b"=").decode()


def keyed_ids(key: bytes, sample_ids: Iterable[str]) -> frozenset[str]:
    """Return the keyed forms of ids."""
    return frozenset(keyed_id(key, sample_id) for sample_id in sample_ids)


def key_forget(forget: Forget, key: bytes) -> Forget:
    """`forget` with keyed ids."""
    return replace(forget, sample_ids=keyed_ids(key, forget.sample_ids)) if forget.sample_ids else forget


def merge_keyed(known: Forget, forget: Forget, keys: Sequence[bytes]) -> tuple[Forget, bool]:
    """Return both, ids hashed under the newest key if there is one, and whether that is more than `known`."""
    both = known | forget
    if not keys:
        return both, both != known
    return key_forget(both, keys[-1]), key_forget(both, keys[-1]) != key_forget(known, keys[-1])


def names_of(keys: Iterable[bytes], sample_ids: Iterable[str]) -> dict[str, str]:
    """Return the plain id behind each keyed one that any of `keys` makes of `sample_ids`."""
    known = list(sample_ids)
    return {keyed_id(key, sample_id): sample_id for key in keys for sample_id in known}


def reveal(forget: Forget, names: Mapping[str, str]) -> Forget:
    """`forget` with plain ids, as far as `names` has them; a keyed id of nothing that is known here stays."""
    if not names or not any(map(is_keyed, forget.sample_ids)):
        return forget
    return replace(forget, sample_ids=frozenset(names.get(item, item) for item in forget.sample_ids))


def commitment(key: bytes, request_id: str, samples_sha256: str) -> str:
    """Return what a certificate says of the ids: 64 hexadecimal digits that only the client's `key` can test.

    samples_sha256: of the canonical list of the keyed ids (`unlearning.requests.hash_of_ids`).
    """
    own = hmac.digest(key, b"certificate\0" + request_id.encode(), "sha256")
    return hmac.digest(own, samples_sha256.encode(), "sha256").hex()
