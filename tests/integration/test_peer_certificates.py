"""Certificates for peers, made by deploy/make_certificates.sh."""

import subprocess
from pathlib import Path

import pytest

from client.peer.gossip import Greeting
from client.peer.grpc_transport import PeerConnection
from server.service.access import caller_of_certificate
from tests.integration.conftest import REPOSITORY
from tests.integration.peer_processes import make_peer_certificate, peer_tls
from tests.peers import Receiver, listening
from unlearning.errors import SessionError


def refused(*arguments: str) -> str:
    """What the script says when it refuses."""
    script = REPOSITORY / "deploy" / "make_certificates.sh"
    done = subprocess.run(["sh", str(script), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    return done.stderr


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of the peers a and b on this machine, and of c on another."""
    directory: Path = tmp_path_factory.mktemp("peers") / "certificates"
    for name, host in (("a", "127.0.0.1"), ("b", "127.0.0.1"), ("c", "192.0.2.3")):
        make_peer_certificate(directory, name, host)
    return directory


def heard(directory: Path, server: str, client: str) -> list[str]:
    """Send a greeting from one peer to another; who the other one has heard from."""
    receiver = Receiver()
    with (
        listening(receiver, peer_tls(directory, server), directory) as address,
        PeerConnection(client, address, peer_tls(directory, client), 5.0) as connection,
    ):
        connection.send(Greeting(client, is_new=True))
    return receiver.senders


def test_a_peer_serves_and_calls_with_one_certificate(certificates: Path) -> None:
    """Each is believed under its address, and known by its name."""
    assert heard(certificates, "a", "b") == ["b"]
    assert heard(certificates, "b", "a") == ["a"]


def test_a_peer_is_not_believed_at_another_address(certificates: Path) -> None:
    """A certificate holds for its hosts only, and loopback is not added."""
    with pytest.raises(SessionError):
        heard(certificates, "c", "a")


def test_a_peers_certificate_opens_no_deletion_service(certificates: Path) -> None:
    """It carries no role."""
    assert caller_of_certificate((certificates / "a.pem").read_bytes()).role is None


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ([], "DIR peer NAME HOST"),
        *(
            (["d.example.org", host], "without a port")
            for host in ("", "10.0.0.1:9300", "a,DNS:elsewhere.example.org", "IP:10.0.0.1")
        ),
    ],
)
def test_a_peer_needs_hosts_each_a_name_or_an_address(
    certificates: Path, hosts: list[str], said: str
) -> None:
    """Anything else could bring in further names; nothing is made, and the usage or what is wrong is shown."""
    assert said in refused(str(certificates), "peer", "d", *hosts)
    assert not (certificates / "d.pem").exists()
