"""A deletion service in a process of its own, with mutual TLS, while somebody attacks it: operators are answered."""

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from benchmarks.speed.deletion_attacks import ATTACKERS, ATTACKS, STRANGER
from benchmarks.speed.deletion_load import OPERATOR, Service, run_attack, running_service
from benchmarks.speed.http_attacks import HTTP_ATTACKS
from server.ledger import ClientRecord, Ledger
from server.service.client import DeletionClient
from strategies.tls_files import TlsFiles
from tests.certificates import Authority
from tests.deletion_service import NOW, erasure
from tests.ledgers import live_at
from unlearning.requests import Granularity, Status, Target

# Attacker, service and operator share two processors with whatever else runs, so each attack takes its time.
pytestmark = [pytest.mark.slow, pytest.mark.long]

NUM_CALLS = 20
ANSWERED_S = 30.0
"""An attack lasts until the test ends it: an operator who waits longer than this is kept out by it."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As deploy/make_certificates.sh names them."""
    directory = tmp_path_factory.mktemp("certificates")
    authority = Authority(directory)
    roles = {"server": (), OPERATOR: ("operator",), STRANGER: (), **dict.fromkeys(ATTACKERS, ("client",))}
    for name, units in roles.items():
        made = authority.certify(name, *units)
        for file in (made.certificate, made.key):
            assert file is not None
            file.rename(directory / file.name.removeprefix("ca-"))
    return directory


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('state') / 'ledger.db'}"


@pytest.fixture(scope="module")
def ledger(url: str) -> Iterator[Ledger]:
    opened = Ledger.open(url)
    token = opened.acquire_fence("test", now=NOW)
    hospitals = [name for attack in (*ATTACKS, *HTTP_ATTACKS) for name in hospitals_of(attack)]
    live_at(opened, token, NOW).register_clients(map(ClientRecord, [*hospitals, *ATTACKERS]))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def service(
    url: str, ledger: Ledger, certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """One process for all attacks, one after the other."""
    with running_service(url, tmp_path_factory.mktemp("service"), certificates) as running:
        yield running


def hospitals_of(attack: str) -> list[str]:
    """Clients to be forgotten during an attack."""
    return [f"hospital-{attack}-{number}" for number in range(NUM_CALLS)]


@contextmanager
def operator_of(service: Service, certificates: Path) -> Iterator[DeletionClient]:
    tls = TlsFiles(
        certificates / "ca.crt", certificates / f"{OPERATOR}.pem", certificates / f"{OPERATOR}.key"
    )
    with DeletionClient(service.address, tls, timeout_s=ANSWERED_S) as client:
        yield client


def file_over_grpc(name: str, service: Service, certificates: Path) -> str:
    with operator_of(service, certificates) as operator:
        return operator.submit(Target(Granularity.CLIENT, name), method="puf-special").id


def file_over_http(name: str, service: Service, certificates: Path) -> str:
    tls = ssl.create_default_context(cafile=certificates / "ca.crt")
    token = (certificates / f"{OPERATOR}.token").read_text()
    with httpx.Client(verify=tls, timeout=ANSWERED_S, trust_env=False) as tool:
        headers = {"Authorization": f"Bearer {token}"}
        asked = erasure(name, client=name)
        answer = tool.post(f"https://{service.http}/requests", json=asked, headers=headers)
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["extensions"]["flower-unlearning"]["request_id"]
    return found


@pytest.mark.parametrize("attack", [*ATTACKS, *HTTP_ATTACKS])
def test_operators_are_answered_during_an_attack(
    attack: str, service: Service, certificates: Path, ledger: Ledger
) -> None:
    """Each call on a connection of its own, by turns over gRPC and HTTP, filed for good; and it costs little memory."""
    with operator_of(service, certificates) as operator:
        operator.methods()  # what is loaded at the first call is loaded now
    service.forget_peak()
    before_mib = service.peak_mib()
    latencies = []
    with run_attack(attack, service, certificates):
        for number, name in enumerate(hospitals_of(attack)):
            began = time.monotonic()
            file = file_over_http if number % 2 else file_over_grpc
            filed = file(name, service, certificates)
            latencies.append(time.monotonic() - began)
            assert ledger.requests.get(filed).status is Status.RECEIVED
    assert max(latencies) < ANSWERED_S
    assert service.peak_mib() - before_mib < 150, "twelve messages of 100 MiB were once 1.2 GB"
