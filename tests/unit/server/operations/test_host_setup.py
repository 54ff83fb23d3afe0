"""A client is let in from a folder that its site fills: nothing in it is followed, changed or waited for."""

import os
import shlex
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from flwr.common.config import parse_config_args

from client.site_setup import Data, setup_site, take_answer
from server.operations.host_setup import SESSION_PORT, TO_SITE, let_in, problems, setup_server
from strategies.installation import Host, run_script
from tests.certificates import Authority
from unlearning.errors import ConfigurationError, DeploymentError, FlowerUnlearningError

SITE = "hospital-0"
KEY, REQUEST = "client-key.pub", f"{SITE}.csr"


class Control:
    """Stands for `flwr`: takes every key, or refuses all."""

    def __init__(self, refusal: str = "") -> None:
        self.keys: list[bytes] = []
        self._refusal = refusal

    def register_supernode(self, public_key: Path, name: str) -> int:
        if self._refusal:
            raise DeploymentError(self._refusal)
        self.keys.append(public_key.read_bytes())
        return 7


class Hosts:
    """A server's host, a site's, and the site's folder as it was carried to the server."""

    def __init__(self, directory: Path) -> None:
        self.server, self.site = (
            Host(
                say=lambda _: None,
                config_dir=place / "etc",
                state_root=place / "var",
                units_dir=place,
                user="",
            )
            for place in (directory / "server", directory / "site")
        )
        self.certificates = self.server.config_dir / "certificates"
        ada = self.certificates / "ada.pem"
        self.server.script("make_certificates.sh", str(self.certificates), "operator", "ada", makes=ada)
        self.folder = setup_site(self.site, SITE, "localhost", Data(part=0, parts=1))
        self.control = Control()

    def let_in(self, folder: Path | None = None, client: str = SITE) -> Path:
        control: Any = self.control
        return let_in(self.server, control, client, folder or self.folder)[1]

    def files(self) -> dict[Path, bytes]:
        """All that the server's host has, without what the authority counts."""
        found = sorted(self.server.config_dir.parent.rglob("*"))
        return {path: path.read_bytes() for path in found if path.is_file() and path.suffix != ".srl"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hosts")
    Hosts(directory)
    return directory


@pytest.fixture
def hosts(made: Path, tmp_path: Path) -> Hosts:
    """Each test has copies: keys and certificates are made once."""
    shutil.copytree(made, tmp_path / "hosts")
    return Hosts(tmp_path / "hosts")


def test_what_goes_back_is_in_a_new_folder_that_the_site_takes(hosts: Hosts) -> None:
    """The site's own folder is as it was, and the answer fits the site's key."""
    before = {path.name: path.read_bytes() for path in hosts.folder.iterdir()}
    answer = hosts.let_in()
    assert answer == hosts.server.state_root / TO_SITE / SITE
    assert answer.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.read_bytes() for path in hosts.folder.iterdir()} == before
    assert hosts.control.keys == [before[KEY]]
    take_answer(hosts.site, SITE, answer)
    for name in ("ca.crt", f"{SITE}.pem"):
        assert (hosts.site.config_dir / name).read_bytes() == (answer / name).read_bytes()
    with pytest.raises(ConfigurationError):
        hosts.let_in()


def test_a_refused_key_leaves_nothing(hosts: Hosts) -> None:
    """The next attempt begins again."""
    before = hosts.files()
    hosts.control = Control("the SuperLink is away")
    with pytest.raises(DeploymentError):
        hosts.let_in()
    assert hosts.files() == before
    hosts.control = Control()
    assert hosts.let_in().is_dir()


def link_over_the_certificate(hosts: Hosts) -> None:
    (hosts.folder / f"{SITE}.pem").symlink_to(hosts.certificates / "made-by-root")


def link_over_the_authority(hosts: Hosts) -> None:
    (hosts.folder / "ca.crt").symlink_to(hosts.certificates / "ca.key")


def hard_link_over_the_authority(hosts: Hosts) -> None:
    (hosts.folder / "ca.crt").hardlink_to(hosts.certificates / "ca.key")


def thousands_of_files(hosts: Hosts) -> None:
    for number in range(500):
        (hosts.folder / f"-{number}\n").touch()


@pytest.mark.parametrize(
    "attack",
    [
        link_over_the_certificate,
        link_over_the_authority,
        hard_link_over_the_authority,
        thousands_of_files,
    ],
    ids=lambda attack: attack.__name__,
)
def test_what_else_is_in_the_folder_does_nothing(hosts: Hosts, attack: Callable[[Hosts], None]) -> None:
    """Not a file of the server is changed or made but those of the answer."""
    attack(hosts)
    before = hosts.files()
    answer = hosts.let_in()
    assert {path: content for path, content in hosts.files().items() if answer not in path.parents} == before


def replaced(name: str, make: Callable[[Path, Hosts], object]) -> Callable[[Hosts], None]:
    def attack(hosts: Hosts) -> None:
        (hosts.folder / name).unlink()
        make(hosts.folder / name, hosts)

    return attack


def folder_as_link(hosts: Hosts) -> None:
    hosts.folder.rename(hosts.folder.with_name("elsewhere"))
    hosts.folder.symlink_to("elsewhere")


def parent_as_link(hosts: Hosts) -> None:
    hosts.folder.parent.rename(hosts.folder.parent.with_name("elsewhere"))
    hosts.folder.parent.symlink_to("elsewhere")


def request_with_another_signature(hosts: Hosts) -> None:
    request = (hosts.folder / REQUEST).read_text().splitlines()
    request[-2] = request[-2][::-1]
    (hosts.folder / REQUEST).write_text("\n".join(request))


def request_of_another(hosts: Hosts) -> None:
    other = setup_site(hosts.site, "hospital-1", "localhost", Data(part=0, parts=1)) / "hospital-1.csr"
    other.replace(hosts.folder / REQUEST)


def certificate_at(path: Path, hosts: Hosts) -> None:
    shutil.copy(hosts.certificates / "ca.crt", path)


BAD: dict[str, Callable[[Hosts], object]] = {
    "folder as a link": folder_as_link,
    "parent as a link": parent_as_link,
    "request with another signature": request_with_another_signature,
    "request of another": request_of_another,
}
for which in (KEY, REQUEST):
    BAD |= {
        f"{which} as a link": replaced(
            which, lambda path, hosts: path.symlink_to(hosts.certificates / "ca.key")
        ),
        f"{which} as a link that leads nowhere": replaced(which, lambda path, _: path.symlink_to("nowhere")),
        f"{which} as a hard link": replaced(
            which, lambda path, hosts: path.hardlink_to(hosts.certificates / "ca.key")
        ),
        f"{which} as a pipe": replaced(which, lambda path, _: os.mkfifo(path)),
        f"{which} as a folder": replaced(which, lambda path, _: path.mkdir()),
        f"{which} as a device": replaced(which, lambda path, _: path.symlink_to("/dev/zero")),
        f"{which} of a terabyte": replaced(which, lambda path, _: (path.touch(), os.truncate(path, 2**40))),
        f"{which} empty": replaced(which, lambda path, _: path.touch()),
        f"{which} as a certificate": replaced(
            which, lambda path, hosts: shutil.copy(hosts.certificates / "ca.crt", path)
        ),
    }


@pytest.mark.parametrize("attack", BAD.values(), ids=BAD.keys())
def test_a_folder_that_is_not_as_the_site_made_it_lets_no_client_in(
    hosts: Hosts, attack: Callable[[Hosts], object]
) -> None:
    """Refused without a wait; no key is registered, and no file is changed or made."""
    attack(hosts)
    before = hosts.files()
    with pytest.raises(FlowerUnlearningError):
        hosts.let_in()
    assert hosts.files() == before
    assert hosts.control.keys == []


def test_the_name_in_a_request_cannot_write_on_the_terminal(hosts: Hosts) -> None:
    """As a control character and a digit that together are the escape of a shell's echo."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "\x033[2J\x1b[2J\nroot is yours")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    request = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    (hosts.folder / REQUEST).write_bytes(request.public_bytes(Encoding.PEM))
    with pytest.raises(DeploymentError) as refused:
        hosts.let_in()
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["../hospital-0", "-x", "a/b", "two\nlines", "", ".", "..", "ca", "a\0b"])
def test_a_client_has_a_plain_name(hosts: Hosts, name: str) -> None:
    """It becomes a file and a folder."""
    for path in (hosts.folder / f"{name}.csr",) if "/" not in name and "\0" not in name else ():
        shutil.copy(hosts.folder / REQUEST, path)
    before = hosts.files()
    with pytest.raises(FlowerUnlearningError):
        hosts.let_in(client=name)
    assert hosts.files() == before


def new_host(directory: Path, **places: Path) -> Host:
    usual = {name: directory / name for name in ("config_dir", "state_root", "units_dir")}
    return Host(say=lambda _: None, user="", **{**usual, **places})


def environment_of(host: Host) -> dict[str, str]:
    """As systemd reads it."""
    lines = (host.config_dir / "environment").read_text().splitlines()
    words = [shlex.split(line, comments=True) for line in lines if not line.startswith("#")]
    return dict(word.split("=", 1) for line in words for word in line)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("fed.example.org", "fed.example.org"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:DB8::7", "[2001:db8::7]"),
        ("[2001:db8::7]", "[2001:db8::7]"),
    ],
)
def test_a_server_is_a_name_or_an_address_of_either_kind(tmp_path: Path, given: str, written: str) -> None:
    """A port follows it in each place where it is written, also at the server itself, whose certificate has it bare."""
    site, server = new_host(tmp_path / "site"), new_host(tmp_path / "server")
    setup_site(site, SITE, given, Data(part=0, parts=1))
    found = environment_of(site)
    assert (found["FEDERATION_SERVER"], found["FLOWER_UNLEARNING_SERVER"]) == (written, f"{written}:9100")
    setup_server(server, "hearts", [given])
    settings = tomllib.loads((server.config_dir / "federation.toml").read_text())["run"]
    assert settings["session-address"] == f"{written}:{SESSION_PORT}"
    certificate = x509.load_pem_x509_certificate((server.config_dir / "certificates/server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert written.strip("[]") in [str(name.value) for name in names]


@pytest.mark.parametrize(
    "host",
    ["https://fed.example.org", "fed:9092", "[::1]:9092", "300.1.1.1", "fe80::1%eth0", "a b", "-x", ""],
)
def test_what_is_no_host_is_refused_before_anything_is_made(tmp_path: Path, host: str) -> None:
    """A scheme or a port would stand in the middle of every address that is made of it."""
    here = new_host(tmp_path)
    with pytest.raises(ConfigurationError):
        setup_site(here, SITE, host, Data(part=0, parts=1))
    with pytest.raises(ConfigurationError):
        setup_server(here, "hearts", ["fed.example.org", host])
    assert not list(tmp_path.iterdir())


def test_what_services_read_names_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They start in a directory of their own, where a relative path would be another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "units").mkdir()
    site = new_host(tmp_path, config_dir=Path("etc"), state_root=Path("var"), units_dir=Path("units"))
    setup_site(site, SITE, "localhost", Data(directory=Path("my data")))
    node = parse_config_args([environment_of(site)["NODE_CONFIG"]])
    assert node["data-dir"] == str(tmp_path / "my data")
    assert node["state-dir"] == str(tmp_path / "var/state")
    assert (
        f"EnvironmentFile={tmp_path}/etc/environment"
        in (tmp_path / "units/flower-supernode.service").read_text()
    )


@pytest.mark.parametrize(
    "name", ["with space", "per%cent", "dol$lar", "quo'te", 'quo"te', "back\\slash", "semi;colon"]
)
def test_a_path_that_would_need_quotes_is_refused(tmp_path: Path, name: str) -> None:
    """Units split at spaces and expand % and $; settings end at a quote."""
    for place in ("config_dir", "state_root", "units_dir"):
        with pytest.raises(ConfigurationError):
            new_host(tmp_path, **{place: tmp_path / name})


@pytest.mark.parametrize("name", ["quo'te", 'quo"te', "back\\slash", "new\nline"])
def test_a_data_directory_that_cannot_be_written_down_is_refused(tmp_path: Path, name: str) -> None:
    """It stands in two pairs of quotes."""
    with pytest.raises(ConfigurationError):
        setup_site(new_host(tmp_path), SITE, "localhost", Data(directory=tmp_path / name))


@pytest.mark.parametrize("name", ['the "north"', "north\\south", "north\nsouth", "north\x00"])
def test_a_name_that_no_run_can_have_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    """Flower's settings on a command line have no spelling for it; others are in the file as they are."""
    with pytest.raises(DeploymentError):
        setup_server(new_host(tmp_path), name, ["localhost"])
    assert not list(tmp_path.iterdir())
    host = new_host(tmp_path)
    setup_server(host, "l'hôpital & co.", ["localhost"])
    assert tomllib.loads((host.config_dir / "federation.toml").read_text())["name"] == "l'hôpital & co."


def test_what_is_kept_and_says_otherwise_is_named(tmp_path: Path) -> None:
    """Who calls it again with a name put right reads that the old one still stands."""
    said: list[str] = []
    site, server = (replace(new_host(tmp_path / name), say=said.append) for name in ("site", "server"))
    for _ in range(2):
        said.clear()
        setup_site(site, SITE, "fed.exampel.org", Data(part=0, parts=1))
        setup_server(server, "hearts", ["fed.exampel.org", "192.0.2.7"])
        assert problems(server, ["fed.exampel.org"], now=datetime.now(UTC)) == []
    assert all(line.startswith(("kept ", "no ")) for line in said), said
    setup_site(site, SITE, "fed.example.org", Data(part=0, parts=1))
    assert "       which lacks FEDERATION_SERVER=fed.example.org" in said
    (wrong,) = problems(server, ["fed.example.org", "192.0.2.7"], now=datetime.now(UTC))
    assert "is not for fed.example.org, so" in wrong


@pytest.mark.parametrize("made_before", ["file", "folder", "link", "link to a folder"])
def test_nothing_is_written_where_something_is(hosts: Hosts, made_before: str) -> None:
    """The folder of the answer is new, or there is none."""
    place = hosts.server.state_root / TO_SITE / SITE
    place.parent.mkdir(parents=True)
    {
        "file": place.touch,
        "folder": place.mkdir,
        "link": lambda: place.symlink_to("nowhere"),
        "link to a folder": lambda: place.symlink_to(hosts.folder),
    }[made_before]()
    before = hosts.files()
    with pytest.raises(ConfigurationError):
        hosts.let_in()
    assert hosts.files() == before
    assert hosts.control.keys == []


def answer_of_another_authority(hosts: Hosts, answer: Path) -> None:
    shutil.copy(Authority(answer.parent).file, answer / "ca.crt")


def answer_for_another_key(hosts: Hosts, answer: Path) -> None:
    shutil.copy(hosts.certificates / "ada.pem", answer / f"{SITE}.pem")


def answer_as_link(hosts: Hosts, answer: Path) -> None:
    (answer / "ca.crt").rename(answer / "elsewhere")
    (answer / "ca.crt").symlink_to("elsewhere")


def answer_as_pipe(hosts: Hosts, answer: Path) -> None:
    (answer / f"{SITE}.pem").unlink()
    os.mkfifo(answer / f"{SITE}.pem")


def answer_without_end(hosts: Hosts, answer: Path) -> None:
    os.truncate(answer / "ca.crt", 2**40)


@pytest.mark.parametrize(
    "attack",
    [
        *(answer_of_another_authority, answer_for_another_key, answer_as_link),
        *(answer_as_pipe, answer_without_end),
    ],
    ids=lambda attack: attack.__name__,
)
def test_an_answer_that_does_not_fit_is_not_taken(
    hosts: Hosts, attack: Callable[[Hosts, Path], None]
) -> None:
    """What is there once is kept, so a wrong file would stay."""
    answer = hosts.let_in()
    attack(hosts, answer)
    with pytest.raises(ConfigurationError):
        take_answer(hosts.site, SITE, answer)
    assert not (hosts.site.config_dir / "ca.crt").exists()
    assert not (hosts.site.config_dir / f"{SITE}.pem").exists()


@pytest.mark.parametrize("target", ["link", "file", "pipe", "folder"])
def test_the_script_signs_into_a_new_file_alone(hosts: Hosts, tmp_path: Path, target: str) -> None:
    """As an administrator calls it, who may give a place in the site's folder."""
    place, victim = hosts.folder / "out.pem", tmp_path / "victim"
    {
        "link": lambda: place.symlink_to(victim),
        "file": place.touch,
        "pipe": lambda: os.mkfifo(place),
        "folder": place.mkdir,
    }[target]()
    with pytest.raises(DeploymentError):
        run_script(
            "make_certificates.sh",
            *(str(hosts.certificates), "sign", "client", SITE, str(hosts.folder / REQUEST), str(place)),
        )
    assert not victim.exists()


@pytest.mark.parametrize("script", [("make_supernode_key.sh",), ("make_certificates.sh", "request", "name")])
def test_a_key_is_not_written_through_a_link(tmp_path: Path, script: tuple[str, ...]) -> None:
    """Also through one that leads nowhere."""
    place = tmp_path / "name" if len(script) == 1 else tmp_path / "name.key"
    place.symlink_to(tmp_path / "victim")
    with pytest.raises(DeploymentError):
        run_script(script[0], str(place if len(script) == 1 else tmp_path), *script[1:])
    assert not (tmp_path / "victim").exists()
