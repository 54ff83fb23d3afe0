"""Setting a server host up, and letting a client in: what `flower-unlearn setup` does."""

import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from server.certificate.keys import SIGNING_KEY, make_key_pair
from server.operations.checklist.finding import Installation, Level
from server.operations.checklist.keys_and_state import check_certificates, check_secrets, check_state
from server.operations.flower_control import FlowerControl, config_argument, flower_config
from server.operations.renewing import hosts_of
from strategies.addresses import host_part
from strategies.installation import CONFIG_DIR, DEPLOY, Host, run_script
from unlearning.errors import ConfigurationError, DeploymentError
from unlearning.runtime.foreign_files import read_plain

FEDERATION_FILE = "federation.toml"
SERVICES = ("flower-superlink", "flower-superexec", "flower-unlearning")
SUPERVISOR = "flower-unlearning-supervisor"
PUBLIC_KEY = "client-key.pub"
TO_SITE = "to-site"
SESSION_PORT = 9101


def setup_server(host: Host, name: str, addresses: Sequence[str]) -> None:
    """Make all that the server host needs; what is there already stays as it is.

    addresses: the names and addresses under which clients reach it.

    Raises:
        ConfigurationError: an address has a scheme or a port, or is none.
        DeploymentError: a script failed, there is no such user, or no run can have such a name.
    """
    reached_at, *_ = hosts = [host_part(address) for address in addresses]
    config_argument({"federation": name})
    config, certificates = host.directory(host.config_dir), host.config_dir / "certificates"
    host.directory(host.state_root)
    host.directory(host.state_dir)
    flower = host.directory(host.state_root / "flower")
    names = [name.strip("[]") for name in hosts]
    host.script(
        "make_certificates.sh", str(certificates), "server", *names, makes=certificates / "server.pem"
    )
    operator = certificates / "operator.pem"
    host.script("make_certificates.sh", str(certificates), "operator", "operator", makes=operator)
    host.file(config / "superexec.secret", secrets.token_bytes(32))
    host.file(flower / "config.toml", flower_config("127.0.0.1:8000", certificates / "ca.crt"))
    _make_signing_key(host, config / "certificate-key")
    above = f'"{name}"' + ("" if config == CONFIG_DIR else f'\nconfig-dir = "{config}"')
    settings = host.localised((DEPLOY / FEDERATION_FILE).read_text()).replace('"main"', above)
    host.file(config / FEDERATION_FILE, settings + _session_settings(reached_at, certificates))
    host.file(config / "environment", _server_environment(host))
    host.file(config / "operator.environment", _operator_environment(reached_at, certificates))
    for service in (*SERVICES, SUPERVISOR):
        host.unit(service)


def let_in(host: Host, control: FlowerControl, client: str, folder: Path) -> tuple[int, Path]:
    """Register a client's key and sign its request; return its node's id and the new folder that goes to the site.

    folder: the site's, and so only read. What is checked and used is this process's own copy.

    Raises:
        ConfigurationError: the folder is not one that `flower-unlearn-site setup` made for this client, or the
            client has a folder to take back already.
        DeploymentError: the SuperLink refuses the key, or the certificate cannot be made.
    """
    certificates = host.config_dir / "certificates"
    answer = host.state_root / TO_SITE / client
    with TemporaryDirectory() as name:
        key, request, signed = (Path(name) / file for file in (PUBLIC_KEY, "request.csr", "certificate.pem"))
        key.write_bytes(_read_of_site(folder / PUBLIC_KEY))
        request.write_bytes(_read_of_site(folder / f"{client}.csr"))
        _check_public_key(folder / PUBLIC_KEY, key.read_bytes())
        sign = ("sign", "client", client, str(request), str(signed))
        run_script("make_certificates.sh", str(certificates), *sign)
        _new_folder(host, answer, {f"{client}.pem": signed, "ca.crt": certificates / "ca.crt"})
        try:
            return control.register_supernode(key, client), answer
        except DeploymentError:
            shutil.rmtree(answer)
            raise


def problems(host: Host, addresses: Sequence[str], *, now: datetime) -> list[str]:
    """Say what is wrong with the files of the host, as `flower-unlearn check` would, and what its certificate lacks."""
    installation = Installation(config_dir=host.config_dir, state_dir=host.state_dir)
    found = [
        *check_secrets(installation),
        *check_certificates(installation, now=now),
        *check_state(installation, mounts=()),
    ]
    wrong = [f"{finding.what} {finding.mend}" for finding in found if finding.level is Level.PROBLEM]
    path = host.config_dir / "certificates" / "server.pem"
    with suppress(OSError, ValueError):  # which the checks have said
        named = hosts_of(x509.load_pem_x509_certificate(path.read_bytes()))
        hosts = [host_part(one).strip("[]") for one in addresses]
        missing = [one for one in hosts if one not in named and f"*.{one.partition('.')[2]}" not in named]
        if missing:
            wrong.append(
                f"{path} is not for {' and '.join(missing)}, so sites would not believe it. Make it again: "
                f"flower-unlearn renew {' '.join(f'--address {one}' for one in hosts)}"
            )
    return wrong


def _new_folder(host: Host, folder: Path, files: Mapping[str, Path]) -> None:
    host.directory(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise ConfigurationError(
            [f"{folder} is there already: carry it to the site, or remove it to let the client in again."]
        ) from None
    host.directory(folder)
    for name, source in files.items():
        host.file(folder / name, source.read_bytes())


def _read_of_site(path: Path) -> bytes:
    try:
        return read_plain(path)
    except FileNotFoundError:
        why = f"{path} is not there; `flower-unlearn-site setup` makes it."
    except OSError as exc:
        why = f"{str(path)!r} was not read: {exc.strerror}. Give the real path of what its `setup` made."
    raise ConfigurationError([why])


def _check_public_key(path: Path, content: bytes) -> None:
    try:
        if isinstance(load_ssh_public_key(content), EllipticCurvePublicKey):
            return
    except (ValueError, UnsupportedAlgorithm):
        pass
    raise ConfigurationError(
        [f"{str(path)!r} is no public key of a SuperNode; make_supernode_key.sh makes them."]
    )


def _make_signing_key(host: Host, directory: Path) -> None:
    if (directory / SIGNING_KEY).exists():
        host.say(f"kept   {directory / SIGNING_KEY}")
        return
    private, public, identity = make_key_pair(directory)
    host.say(f"made   {private}; hand {public} to those who check certificates (key id {identity})")


def _session_settings(address: str, certificates: Path) -> str:
    """Return the settings of the run for sessions: the certificates are those of the deletion service.

    A site that `setup` lets in has one of its authority anyway, in the role of a client.
    """
    return (
        "# Sessions (docs/how-to-use-sessions.md): methods of many exchanges use them, and with the line below all "
        "rounds do.\n"
        '#transport = "session"\n'
        f'session-address = "{address}:{SESSION_PORT}"\nsession-bind = "0.0.0.0:{SESSION_PORT}"\n'
        f'session-tls-ca = "{certificates / "ca.crt"}"\n'
        f'session-tls-cert = "{certificates / "server.pem"}"\nsession-tls-key = "{certificates / "server.key"}"\n'
    )


def _server_environment(host: Host) -> str:
    """Return the environment of the server's programs: the example without what is a client host's."""
    text = host.localised((DEPLOY / "systemd" / "environment").read_text())
    return text.partition("# Client hosts only")[0]


def _operator_environment(address: str, certificates: Path) -> str:
    """Return what an operator's shell reads, so that no call has to name server and certificates."""
    return (
        f"# set -a; . THIS_FILE; set +a\nFLOWER_UNLEARNING_SERVER={address}:9100\n"
        f"FLOWER_UNLEARNING_TLS_CA={certificates / 'ca.crt'}\n"
        f"FLOWER_UNLEARNING_TLS_CERT={certificates / 'operator.pem'}\n"
        f"FLOWER_UNLEARNING_TLS_KEY={certificates / 'operator.key'}\n"
    )
