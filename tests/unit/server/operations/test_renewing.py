"""A certificate is renewed by its own authority only, with its name, role and key, by one rename."""

import os
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from server.cli import app
from server.operations.renewing import VALID, renew
from server.service.access import caller_of_certificate
from server.service.calls import Role
from strategies.installation import run_script
from unlearning.errors import ConfigurationError

NOW = datetime(2028, 5, 4, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    run_script("make_certificates.sh", str(directory), "server", "fed.example.org", "192.0.2.1")
    run_script("make_certificates.sh", str(directory), "officer", "ada")
    run_script("make_certificates.sh", str(directory), "operator,officer", "mia")
    return directory


@pytest.fixture
def certificates(made, tmp_path) -> Path:
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / path.name).chmod(path.stat().st_mode & 0o777)
    return tmp_path


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.parametrize("name", ["server", "ada"])
def test_only_the_time_and_the_number_are_new(certificates, name):
    """Subject, key and extensions are what they were, and the authority has signed it."""
    path = certificates / f"{name}.pem"
    old, mode = read(path), path.stat().st_mode
    key = (certificates / f"{name}.key").read_bytes()
    renew(path, certificates, now=NOW)
    new = read(path)
    assert (new.subject, new.public_key()) == (old.subject, old.public_key())
    assert {one.oid: one.value for one in new.extensions} == {one.oid: one.value for one in old.extensions}
    assert new.not_valid_before_utc <= NOW
    assert new.not_valid_after_utc == NOW + VALID
    assert new.serial_number != old.serial_number
    new.verify_directly_issued_by(read(certificates / "ca.crt"))
    assert (path.stat().st_mode, (certificates / f"{name}.key").read_bytes()) == (mode, key)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(path, certificates / f"{name}.key")


@pytest.mark.parametrize(("name", "roles"), [("ada", [Role.OFFICER]), ("mia", [Role.OFFICER, Role.OPERATOR])])
def test_the_name_and_the_roles_of_a_caller_stay(certificates, name, roles):
    """By these the deletion service knows it."""
    path = certificates / f"{name}.pem"
    renew(path, certificates, now=NOW)
    assert read(path).not_valid_after_utc == NOW + VALID
    caller = caller_of_certificate(path.read_bytes())
    assert (caller.name, sorted(caller.roles), caller.problem) == (name, sorted(roles), "")


def test_a_host_gets_other_addresses(certificates):
    """As when the server moves; its own programs go on calling it by loopback."""
    renew(
        certificates / "server.pem",
        certificates,
        addresses=["new.example.org", "192.0.2.9", "[2001:db8::9]"],
        now=NOW,
    )
    names = (
        read(certificates / "server.pem")
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "new.example.org"]
    addresses = [ip_address(one) for one in ("127.0.0.1", "192.0.2.9", "2001:db8::9")]
    assert names.get_values_for_type(x509.IPAddress) == addresses


def test_what_another_authority_has_made_is_not_renewed(certificates, tmp_path_factory):
    """Otherwise any role could be taken; neither is one of a ca.key that does not belong to ca.crt."""
    other = tmp_path_factory.mktemp("other")
    run_script("make_certificates.sh", str(other), "operator", "eve")
    before = (other / "eve.pem").read_bytes()
    with pytest.raises(ConfigurationError):
        renew(other / "eve.pem", certificates, now=NOW)
    assert (other / "eve.pem").read_bytes() == before
    (certificates / "ca.key").write_bytes((other / "ca.key").read_bytes())
    with pytest.raises(ConfigurationError):
        renew(certificates / "ada.pem", certificates, now=NOW)


def test_a_new_authority_renews_what_the_old_one_has_made(certificates, tmp_path_factory):
    """While ca.crt holds both; never for longer than it lives itself."""
    other = tmp_path_factory.mktemp("other")
    run_script("make_certificates.sh", str(other), "operator", "eve")
    both = (certificates / "ca.crt").read_bytes() + (other / "ca.crt").read_bytes()
    (other / "ca.crt").write_bytes(both)
    renew(certificates / "ada.pem", other, now=NOW)
    new, authority = read(certificates / "ada.pem"), x509.load_pem_x509_certificates(both)[1]
    new.verify_directly_issued_by(authority)
    late = authority.not_valid_after_utc - timedelta(days=3)
    renew(certificates / "ada.pem", other, now=late)
    assert read(certificates / "ada.pem").not_valid_after_utc == authority.not_valid_after_utc


def test_neither_a_role_nor_the_authority_is_changed(certificates):
    """A caller has no address, and a peer's name is not one; the authority's own certificate is exchanged otherwise."""
    with pytest.raises(ConfigurationError):
        renew(certificates / "ada.pem", certificates, addresses=["new.example.org"], now=NOW)
    with pytest.raises(ConfigurationError):
        renew(certificates / "server.pem", certificates, addresses=["new.example.org:9092"], now=NOW)
    with pytest.raises(ConfigurationError):
        renew(certificates / "ca.crt", certificates, now=NOW)
    run_script("make_certificates.sh", str(certificates), "peer", "berlin", "192.0.2.1")
    path = certificates / "berlin.pem"
    subject = read(path).subject
    renew(path, certificates, addresses=["192.0.2.7"], now=NOW)
    names = read(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert (read(path).subject, [str(name.value) for name in names]) == (subject, ["192.0.2.7"])


def test_a_certificate_that_is_not_there_is_a_sentence(certificates):
    """With the option that names the authority."""
    with pytest.raises(ConfigurationError) as caught:
        renew(certificates / "none.pem", certificates, now=NOW)
    assert "--authority names the directory" in caught.value.problems[0]


def test_the_command_says_what_to_restart(certificates):
    """The server's services for the server's, which is renewed where none is named; its holder for another."""
    said = CliRunner().invoke(app, ["renew", "--authority", str(certificates)])
    assert said.exit_code == 0, said.output
    assert "systemctl restart flower-superlink flower-unlearning" in said.output
    assert "flower-superexec where session-address is set" in said.output
    said = CliRunner().invoke(app, ["renew", str(certificates / "ada.pem"), "--authority", str(certificates)])
    assert "It goes to its holder" in said.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files that a service cannot read")
def test_what_root_renews_is_the_services(certificates):
    """The owner of the directory can read it at the next start."""
    os.chown(certificates, 65534, 65534)
    renew(certificates / "server.pem", certificates, now=NOW)
    assert (certificates / "server.pem").stat().st_uid == 65534
