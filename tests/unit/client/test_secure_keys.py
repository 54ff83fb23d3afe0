"""The key of a site and the folder of all clients' public keys, as secure aggregation needs them."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from flwr.app import Context, RecordDict

from client.secure_rounds import identity_of
from tests.raising import refuses
from unlearning.secure_aggregation.terms import SMALLEST_COHORT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A site's key beside a roster of three clients, of which it is `b`."""
    (tmp_path / "roster").mkdir()
    for name in "abc":
        write(tmp_path, name, ed25519.Ed25519PrivateKey.generate(), own=name == "b")
    return tmp_path


def write(folder: Path, name: str, key: Any, *, own: bool = False, public: bool = True) -> None:
    if own:
        (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    if public:
        (folder / "roster" / f"{name}.pem").write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )


def context_of(folder: Path, **config: Any) -> Context:
    files = {"secure-key": str(folder / "key.pem"), "secure-roster": str(folder / "roster")}
    return Context(run_id=1, node_id=1, node_config={**files, **config}, state=RecordDict(), run_config={})


def test_a_site_is_the_client_whose_public_key_is_its_own(folder: Path):
    """Whatever its node is called; its cohort has the size that it asks for."""
    found = identity_of(context_of(folder, **{"client-id": "z"}))
    assert (found.client, sorted(found.roster), found.min_cohort) == ("b", ["a", "b", "c"], SMALLEST_COHORT)
    assert identity_of(context_of(folder, **{"min-cohort": 7})).min_cohort == 7


@pytest.mark.parametrize("own", [True, False])
def test_a_key_of_another_kind_is_refused(folder: Path, own: bool):
    """At this site, or of anyone in the roster: it is not left out of it in silence."""
    write(folder, "d", ec.generate_private_key(ec.SECP256R1()), own=own, public=not own)
    with refuses("secure-key, secure-roster"):
        identity_of(context_of(folder))


def test_a_roster_has_this_sites_own_key_exactly_once(folder: Path):
    """Without it the site takes part in no round, and with two names it could be counted twice."""
    again = folder / "roster" / "e.pem"
    again.write_bytes((folder / "roster" / "b.pem").read_bytes())
    with refuses("secure-roster"):
        identity_of(context_of(folder))
    again.unlink()
    (folder / "roster" / "b.pem").unlink()
    with refuses("secure-roster"):
        identity_of(context_of(folder))


@pytest.mark.parametrize("broken", ["key.pem", "roster/a.pem"])
@pytest.mark.parametrize("content", [b"", b"no key", None])
def test_a_file_that_is_no_key_is_refused(folder: Path, broken: str, content: bytes | None):
    """Empty, of anything else, or not there."""
    if content is None:
        (folder / broken).unlink()
        if broken != "key.pem":  # a client that is not in the roster is no error of this site
            assert sorted(identity_of(context_of(folder)).roster) == ["b", "c"]
            return
    else:
        (folder / broken).write_bytes(content)
    with refuses("secure-key, secure-roster"):
        identity_of(context_of(folder))


@pytest.mark.parametrize("missing", ["secure-key", "secure-roster"])
def test_one_without_the_other_is_refused(folder: Path, missing: str):
    """Also of a virtual client, which needs neither."""
    with refuses("secure-key, secure-roster"):
        identity_of(context_of(folder, **{missing: "", "partition-id": 1, "num-partitions": 3}))
