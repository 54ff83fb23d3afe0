"""The key of a site and the folder of all clients' public keys, as secure aggregation needs them."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, RecordDict

from client.secure_rounds import identity_of
from tests.key_files import write_keys
from tests.raising import refuses
from unlearning.secure_aggregation.terms import SMALLEST_COHORT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A site's key `b.key`, those of two others, and a roster of all three."""
    (tmp_path / "roster").mkdir()
    for name in "abc":
        write_keys(tmp_path / f"{name}.key", tmp_path / "roster" / f"{name}.pem")
    return tmp_path


def context_of(folder: Path, **config: Any) -> Context:
    files = {"secure-key": str(folder / "b.key"), "secure-roster": str(folder / "roster")}
    return Context(run_id=1, node_id=1, node_config={**files, **config}, state=RecordDict(), run_config={})


def test_a_site_is_the_client_whose_public_key_is_its_own(folder: Path):
    """Whatever its node is called; its cohort has the size that it asks for."""
    found = identity_of(context_of(folder, **{"client-id": "z"}))
    assert (found.client, sorted(found.roster), found.min_cohort) == ("b", ["a", "b", "c"], SMALLEST_COHORT)
    assert identity_of(context_of(folder, **{"min-cohort": 7})).min_cohort == 7


@pytest.mark.parametrize(("private", "public"), [("b.key", "unused.pem"), ("unused.key", "roster/d.pem")])
def test_a_key_of_another_kind_is_refused(folder: Path, private: str, public: str):
    """At this site, or of anyone in the roster: it is not left out of it in silence."""
    write_keys(folder / private, folder / public, ec.generate_private_key(ec.SECP256R1()))
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


@pytest.mark.parametrize("broken", ["b.key", "roster/a.pem"])
@pytest.mark.parametrize("content", [b"", b"no key"])
def test_a_file_that_is_no_key_is_refused(folder: Path, broken: str, content: bytes):
    """Empty, or anything else."""
    (folder / broken).write_bytes(content)
    with refuses("secure-key, secure-roster"):
        identity_of(context_of(folder))


def test_a_site_needs_its_key_and_knows_those_whose_keys_are_there(folder: Path):
    """That another client is not in the roster is no error of this site."""
    (folder / "roster" / "a.pem").unlink()
    assert sorted(identity_of(context_of(folder)).roster) == ["b", "c"]
    (folder / "b.key").unlink()
    with refuses("secure-key, secure-roster"):
        identity_of(context_of(folder))


@pytest.mark.parametrize("missing", ["secure-key", "secure-roster"])
def test_one_without_the_other_is_refused(folder: Path, missing: str):
    """Also of a virtual client, which needs neither."""
    with refuses("secure-key, secure-roster"):
        identity_of(context_of(folder, **{missing: "", "partition-id": 1, "num-partitions": 3}))
