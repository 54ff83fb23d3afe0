"""RFC 3161 timestamps of a certificate, by an authority of our own (openssl ts) over real HTTP."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.certificate.file_checks import Outcome
from server.certificate.timestamp import check_timestamp, fetch_timestamp
from tests.raising import raises
from tests.timestamping import Authority, running_authority
from unlearning.errors import CertificateError

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the timestamps")

CONTENT = b'{"certificate":{},"signature":null}\n'


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    with running_authority(tmp_path_factory.mktemp("tsa") / "own") as made:
        yield made


@pytest.fixture(scope="module")
def stamped(authority: Authority) -> Path:
    """A timestamp of CONTENT."""
    path = authority.directory / "certificate.tsr"
    path.write_bytes(fetch_timestamp(CONTENT, authority.url, authority.file))
    return path


def test_a_timestamp_says_when(authority: Authority, stamped: Path) -> None:
    """And whose certificate it was checked with."""
    check = check_timestamp(CONTENT, stamped, authority.file)
    assert check.outcome is Outcome.HOLDS
    assert "The file was there at 20" in check.sentence


def test_a_timestamp_of_another_file_is_refused(authority: Authority, stamped: Path) -> None:
    """One byte is enough."""
    assert check_timestamp(CONTENT + b" ", stamped, authority.file).outcome is Outcome.REFUSED


def test_a_timestamp_of_another_authority_is_refused(stamped: Path, tmp_path: Path) -> None:
    """An authority of the same name is another one."""
    other = Authority(tmp_path / "other")
    other.prepare()
    assert check_timestamp(CONTENT, stamped, other.file).outcome is Outcome.REFUSED


@pytest.mark.parametrize("position", [60, -10])
def test_a_timestamp_that_was_changed_is_refused(
    authority: Authority, stamped: Path, tmp_path: Path, position: int
) -> None:
    """In what it says or in its signature."""
    changed = bytearray(stamped.read_bytes())
    changed[position] ^= 1
    (tmp_path / "changed.tsr").write_bytes(changed)
    assert check_timestamp(CONTENT, tmp_path / "changed.tsr", authority.file).outcome is Outcome.REFUSED


def test_what_was_not_given_is_skipped_or_refused(stamped: Path) -> None:
    """No timestamp is no fault; a timestamp without its authority says nothing."""
    assert check_timestamp(CONTENT, None, None).outcome is Outcome.SKIPPED
    assert check_timestamp(CONTENT, stamped, None).outcome is Outcome.REFUSED


def test_an_authority_that_is_away_is_explained(authority: Authority) -> None:
    """An error of HTTP, a port without a listener, and a file that holds no authority."""
    for url in (authority.url + "away", "http://127.0.0.1:1/", "no url"):
        with raises(CertificateError, "no-answer") as caught:
            fetch_timestamp(CONTENT, url, authority.file)
        assert "\n" not in str(caught.value)
    with raises(CertificateError, "no-authority"):
        fetch_timestamp(CONTENT, authority.url, authority.directory / "tsa.key")
