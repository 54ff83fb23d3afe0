"""Setting a data owner's host up: keys that never leave it, settings and unit, and what goes to the server."""

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from strategies.addresses import host_part
from strategies.installation import DEPLOY, Host, is_issued_by
from unlearning.errors import ConfigurationError
from unlearning.runtime.durable_files import write_atomically
from unlearning.runtime.foreign_files import read_plain

PUBLIC_KEY, UNIT = "client-key.pub", "flower-supernode"
_QUOTES = frozenset("'\"\\")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Which data a site has: a directory of its own, or one part of a data set that is dealt out among `parts`."""

    directory: Path | None = None
    part: int = 0
    parts: int = 0

    def node_config(self) -> str:
        """Return the part of the SuperNode's node configuration on it.

        Raises:
            ConfigurationError: neither is given, the part is none of the parts, or the path cannot be written there.
        """
        if self.directory is not None:
            path = str(self.directory.absolute())
            if not path.isprintable() or not _QUOTES.isdisjoint(path):
                raise ConfigurationError(
                    [f"--data-dir {path!r}: a quote or backslash cannot stand in NODE_CONFIG."]
                )
            return f'data-dir="{path}"'
        if not 0 <= self.part < self.parts:
            raise ConfigurationError(
                [
                    "--data-dir names this site's own data. Where a data set is dealt out instead, give --part-id "
                    f"(from 0 on) and --num-parts, the same at all sites; got {self.part} of {self.parts}."
                ]
            )
        return f"partition-id={self.part} num-partitions={self.parts}"


def setup_site(host: Host, name: str, server: str, data: Data) -> Path:
    """Make all that a client's host needs; return the folder that is carried to the server.

    Raises:
        ConfigurationError: it is not given which data the site has, or `server` is no host's name or address.
        DeploymentError: a script failed, or there is no such user.
    """
    server, config_of_data = host_part(server), data.node_config()
    config = host.directory(host.config_dir)
    host.directory(host.state_root)
    host.directory(host.state_dir)
    key, request = config / "client-key", config / f"{name}.csr"
    host.script("make_supernode_key.sh", str(key), makes=key)
    host.script("make_certificates.sh", str(config), "request", name, makes=request)
    host.file(config / "environment", _environment(host, name, server, config_of_data))
    host.unit(UNIT)
    folder = host.directory(config / "to-server" / name)
    for path in (config / PUBLIC_KEY, request):
        write_atomically(folder / path.name, path.read_bytes())
    return folder


def take_answer(host: Host, name: str, folder: Path) -> None:
    """Put what came back from the server where the site's programs look for it.

    Raises:
        ConfigurationError: it is not all there, or is not the answer to this site's request.
    """
    names = ("ca.crt", f"{name}.pem")
    try:
        files = {file: read_plain(folder / file) for file in names}
        authorities = x509.load_pem_x509_certificates(files["ca.crt"])
        certificate = x509.load_pem_x509_certificate(files[f"{name}.pem"])
        key = load_pem_private_key((host.config_dir / f"{name}.key").read_bytes(), None)
    except (OSError, ValueError) as exc:
        raise ConfigurationError(
            [f"--answer {folder}: {exc}. `flower-unlearn setup client` makes {' and '.join(names)}."]
        ) from exc
    is_issued = any(is_issued_by(certificate, authority) for authority in authorities)
    if not is_issued or certificate.public_key() != key.public_key():
        raise ConfigurationError(
            [f"--answer {folder}: {name}.pem is not for this site's key {name}.key, or not signed by ca.crt."]
        )
    for file, content in files.items():
        host.file(host.config_dir / file, content)


def _environment(host: Host, name: str, server: str, config_of_data: str) -> str:
    """Return the environment of the site's programs: the example with this site's values."""
    head, _, _ = (DEPLOY / "systemd" / "environment").read_text().partition("# Server host: what start")
    tls = {
        "CA": host.config_dir / "ca.crt",
        "CERT": host.config_dir / f"{name}.pem",
        "KEY": host.config_dir / f"{name}.key",
    }
    sessions = " ".join(f'session-tls-{part.lower()}="{path}"' for part, path in tls.items())
    return (
        f"{host.localised(head)}FEDERATION_SERVER={server}\n"
        f'NODE_CONFIG=\'{config_of_data} client-id="{name}" state-dir="{host.state_dir}" {sessions}\'\n'
        "# For requests with this client's own certificate: flower-unlearn list, report, verify --service\n"
        f"FLOWER_UNLEARNING_SERVER={server}:9100\n"
        + "".join(f"FLOWER_UNLEARNING_TLS_{part}={path}\n" for part, path in tls.items())
    )
