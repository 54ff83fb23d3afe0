"""Timestamps in the background, by an authority of our own over real HTTP."""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from server.certificate.file_checks import Outcome
from server.certificate.timestamp import TimestampAuthority, check_timestamp
from server.certificate.timestamp_worker import TimestampWorker
from server.ledger import Ledger
from tests import ledgers
from tests.deletion_service import FORGETTING, LiveLoop
from tests.raising import raises
from tests.timestamping import Authority, running_authority
from tests.waiting import wait_until
from unlearning.errors import CertificateError, ConfigurationError
from unlearning.requests import Granularity, Status, Target
from unlearning.runtime.growing_pause import GrowingPause

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the timestamps")

SOON = GrowingPause(first_s=0.01, longest_s=0.01)


@pytest.fixture
def ledger(sqlite_ledger: Ledger) -> Ledger:
    return sqlite_ledger


@pytest.fixture
def loop(ledger: Ledger) -> LiveLoop:
    return LiveLoop(ledger)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    with running_authority(tmp_path_factory.mktemp("tsa") / "own") as made:
        yield made


@pytest.fixture
def authority(kept: Authority) -> Authority:
    """The authority, which answers and has not been asked."""
    kept.is_away, kept.num_asked = False, 0
    return kept


Start = Callable[[], TimestampWorker]


@pytest.fixture
def start(
    ledger: Ledger, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    monkeypatch.setattr("server.certificate.timestamp_worker._POLL_S", 0.01)
    with ExitStack() as running:

        def begin() -> TimestampWorker:
            asked = TimestampAuthority(url=authority.url, certificate=authority.file)
            made = TimestampWorker(ledger, tmp_path / "reports", asked, pause=SOON)
            made.start()
            running.callback(made.stop)
            return made

        yield begin


def certified(ledger: Ledger, tmp_path: Path, client: str) -> tuple[str, Path]:
    """A request of a client whose certificate is written and which is not yet completed; where the certificate is."""
    request = ledgers.submit(ledger, Target(Granularity.CLIENT, client), key=client)
    path = tmp_path / "reports" / request.id / "certificate.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(client.encode())
    return request.id, path


def check(path: Path, authority: Authority) -> Outcome:
    """What `verify` says of the timestamp beside a certificate, when there is one."""
    timestamp = path.with_suffix(".tsr")
    wait_until(timestamp.exists)
    return check_timestamp(path.read_bytes(), timestamp, authority.file).outcome


def test_a_certificate_is_stamped_when_its_request_is_completed(
    start: Start, ledger: Ledger, loop: LiveLoop, tmp_path: Path, authority: Authority
) -> None:
    """And not before, for until then it may be written once more. Each is stamped once."""
    start()
    done, path = certified(ledger, tmp_path, "3")
    _, open_one = certified(ledger, tmp_path, "4")
    loop.move(done, *FORGETTING)
    assert check(path, authority) is Outcome.HOLDS
    assert not open_one.with_suffix(".tsr").exists()
    assert authority.num_asked == 1


def test_an_authority_that_is_away_is_asked_again(
    start: Start,
    ledger: Ledger,
    loop: LiveLoop,
    tmp_path: Path,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The request is completed all the same, and the log says which certificate waits and why."""
    authority.is_away = True
    start()
    request, path = certified(ledger, tmp_path, "3")
    with caplog.at_level(logging.WARNING):
        loop.move(request, *FORGETTING)
        wait_until(lambda: authority.num_asked >= 3)
    assert ledger.requests.get(request).status is Status.COMPLETED
    assert not path.with_suffix(".tsr").exists()
    assert f"The certificate of {request} has no timestamp yet" in caplog.text
    assert "503" in caplog.text
    authority.is_away = False
    assert check(path, authority) is Outcome.HOLDS


def test_what_was_completed_meanwhile_is_stamped_after_a_restart(
    start: Start, ledger: Ledger, loop: LiveLoop, tmp_path: Path, authority: Authority
) -> None:
    """Also what an earlier service could not have stamped; what is stamped stays as it is."""
    authority.is_away = True
    before = start()
    paths = []
    for client in ("3", "4"):
        request, path = certified(ledger, tmp_path, client)
        loop.move(request, *FORGETTING)
        paths.append(path)
    wait_until(lambda: authority.num_asked >= 2)
    before.stop()
    paths[0].with_suffix(".tsr").write_bytes(b"there already")
    authority.is_away = False
    start()
    assert check(paths[1], authority) is Outcome.HOLDS
    assert paths[0].with_suffix(".tsr").read_bytes() == b"there already"


def test_a_certificate_that_cannot_be_read_keeps_no_other_waiting(
    start: Start, ledger: Ledger, loop: LiveLoop, tmp_path: Path, authority: Authority
) -> None:
    """The others get theirs while it is tried again."""
    damaged, path = certified(ledger, tmp_path, "3")
    path.unlink()
    path.mkdir()
    whole, other = certified(ledger, tmp_path, "4")
    loop.move(damaged, *FORGETTING)
    loop.move(whole, *FORGETTING)
    start()
    assert check(other, authority) is Outcome.HOLDS


def test_an_authority_that_cannot_be_checked_is_refused_at_the_start(
    ledger: Ledger, tmp_path: Path, authority: Authority
) -> None:
    """And so is one that is named by half."""
    asked = TimestampAuthority(url=authority.url, certificate=authority.directory / "tsa.key")
    with raises(CertificateError, "no-authority"):
        TimestampWorker(ledger, tmp_path, asked).start()
    for url, file in ((authority.url, None), ("", authority.file)):
        with pytest.raises(ConfigurationError):
            TimestampAuthority.of(url, file)
    assert TimestampAuthority.of("", None) is None
