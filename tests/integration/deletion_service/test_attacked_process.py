"""A deletion service in a process of its own, with mutual TLS, while somebody attacks it: operators are answered."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.speed.deletion_attacks import ATTACKERS, ATTACKS, STRANGER
from benchmarks.speed.deletion_load import Service, run_attack, running_service
from server.api.client import DeletionClient
from server.api.tls import TlsFiles
from server.ledger import ClientRecord, Ledger
from tests.certificates import Authority
from tests.deletion_service import NOW
from unlearning.requests import Granularity, Status, Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NUM_CALLS = 40
# Of this machine, which may be busy; benchmarks/speed/deletion_load.py measures what an idle one takes.
ANSWERED_S = 10.0


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """As deploy/make_certificates.sh names them."""
    directory = tmp_path / "certificates"
    directory.mkdir()
    authority = Authority(directory)
    roles = {"server": (), "ada": ("operator",), STRANGER: (), **dict.fromkeys(ATTACKERS, ("client",))}
    for name, units in roles.items():
        made = authority.certify(name, *units)
        for file in (made.certificate, made.key):
            assert file is not None
            file.rename(directory / file.name.removeprefix("ca-"))
    return directory


@contextmanager
def operator_of(service: Service, certificates: Path) -> Iterator[DeletionClient]:
    tls = TlsFiles(certificates / "ca.crt", certificates / "ada.pem", certificates / "ada.key")
    with DeletionClient(service.address, tls, timeout_s=ANSWERED_S) as client:
        yield client


@pytest.mark.parametrize("attack", ATTACKS)
def test_operators_are_answered_during_an_attack(attack: str, certificates: Path, tmp_path: Path) -> None:
    """Each call on a connection of its own, filed for good; and the attack costs little memory."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger.open(url)
    token = ledger.acquire_fence("test", now=NOW)
    names = [f"hospital-{number}" for number in range(NUM_CALLS)]
    ledger.register_clients(map(ClientRecord, [*names, *ATTACKERS]), token=token, now=NOW)
    latencies = []
    with running_service(url, tmp_path, certificates) as service:
        with operator_of(service, certificates) as operator:
            operator.methods()  # what is loaded at the first call is loaded now
        before_mib = service.peak_mib()
        with run_attack(attack, service, certificates):
            for name in names:
                began = time.monotonic()
                with operator_of(service, certificates) as operator:
                    filed = operator.submit(Target(Granularity.CLIENT, name), method="puf-special")
                latencies.append(time.monotonic() - began)
                assert ledger.get(filed.id).status is Status.RECEIVED
        grown_mib = service.peak_mib() - before_mib
    ledger.close()
    assert max(latencies) < ANSWERED_S
    assert grown_mib < 150, "twelve messages of 100 MiB were once 1.2 GB"
