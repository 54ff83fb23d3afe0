"""What deploy/ gives an administrator works: certificates, keys, service units."""

import shlex
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from benchmarks.local_layout import free_ports
from benchmarks.process_group import ProcessGroup
from server.operations.checklist.ports import can_connect
from server.operations.federation_toml import read_federation_file
from server.operations.flower_control import FLOWER_ENVIRONMENT, flower_environment
from server.service.access import Caller, caller_of_certificate
from server.service.calls import Role
from strategies.installation import program, run_script
from strategies.settings.run_config import RunSettings
from tests.integration.conftest import REPOSITORY
from tests.programs import run_program
from tests.waiting import WAIT_S
from unlearning.runtime.durable_files import open_to_others

DEPLOY = REPOSITORY / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(DEPLOY / name), *arguments], capture_output=True, text=True, check=False)


def unit_command(unit: Path) -> list[str]:
    text = unit.read_text().replace("\\\n", " ")
    [line] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    return shlex.split(line.removeprefix("ExecStart="))


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    directory = tmp_path / "certificates"
    run_script(
        "make_certificates.sh", str(directory), "server", "fed.example.org", "192.0.2.7", "2001:db8::7"
    )
    run_script("make_certificates.sh", str(directory), "operator", "operator")
    return directory


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, server_name: str) -> str:
    """Connect the two; give the name in the certificate that the client showed."""
    left, right = socket.socketpair()
    left.settimeout(WAIT_S)
    right.settimeout(WAIT_S)

    def connect() -> None:
        with client.wrap_socket(right, server_hostname=server_name) as secure:
            secure.recv(1)

    with left, right, ThreadPoolExecutor(1) as threads:
        connected = threads.submit(connect)
        try:
            with server.wrap_socket(left, server_side=True) as secure:
                secure.sendall(b"!")
                shown = secure.getpeercert() or {}
        except (ssl.SSLError, ConnectionError):
            shown = {}
        connected.result()
    return dict(pair for part in shown.get("subject", ()) for pair in part).get("commonName", "")


def contexts(certificates: Path, caller: str = "operator") -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.crt")
    server.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=certificates / "ca.crt")
    client.load_cert_chain(certificates / f"{caller}.pem", certificates / f"{caller}.key")
    for one in (server, client):
        one.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
    return server, client


@pytest.mark.parametrize("name", ["fed.example.org", "192.0.2.7", "2001:db8::7", "localhost", "127.0.0.1"])
def test_the_server_is_believed_under_each_of_its_names(certificates, name):
    """Those that were asked for, and loopback; and it learns who calls by the certificate's name."""
    assert handshake(*contexts(certificates), name) == "operator"


@pytest.mark.parametrize(
    "host",
    [
        "300.1.1.1",
        "ab:12",
        "::zz",
        "fed.example.org:9092",
        "192.0.2.7:9092",
        "::1,DNS:x",
        "1:a,DNS:1",
        "[::1]",
        "a b",
        "",
    ],
)
def test_no_certificate_is_made_for_what_is_no_host(tmp_path, host):
    """Nor a key, which would stand in the way of the next try."""
    done = script("make_certificates.sh", str(tmp_path / "new"), "server", host)
    assert done.returncode != 0
    assert "a DNS name or an address" in done.stderr
    assert {path.name for path in (tmp_path / "new").glob("*")} <= {"ca.crt", "ca.key"}


def test_the_server_is_not_believed_under_another_name(certificates):
    """A certificate holds for its names only."""
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(*contexts(certificates), "elsewhere.example.org")


def test_a_caller_of_another_authority_is_refused(certificates, tmp_path):
    """A certificate that somebody else's authority made opens nothing."""
    run_script("make_certificates.sh", str(tmp_path / "other"), "client", "operator")
    server, client = contexts(certificates)
    client.load_cert_chain(tmp_path / "other" / "operator.pem", tmp_path / "other" / "operator.key")
    with pytest.raises(ssl.SSLError):
        handshake(server, client, "localhost")


def test_a_callers_certificate_cannot_play_the_server(certificates):
    """Whoever may file requests may not impersonate the federation."""
    server, client = contexts(certificates)
    server.load_cert_chain(certificates / "operator.pem", certificates / "operator.key")
    client.check_hostname = False
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "localhost")


def test_a_certificate_is_not_overwritten(certificates):
    """Making one again says so and leaves the old one."""
    before = (certificates / "operator.pem").read_bytes()
    done = script("make_certificates.sh", str(certificates), "operator", "operator")
    assert done.returncode == 1
    assert "exists already" in done.stderr
    assert (certificates / "operator.pem").read_bytes() == before


@pytest.mark.parametrize(
    ("role", "name"),
    [*(("client", name) for name in ("../escape", "a/CN=operator", "ca", "server", "")), ("admin", "eve")],
)
def test_a_name_that_could_pass_for_another_or_an_unknown_role_is_refused(certificates, role, name):
    """No paths, no further parts of a distinguished name, not the server's own files; nothing is made."""
    before = {path: path.read_bytes() for path in certificates.iterdir()}
    done = script("make_certificates.sh", str(certificates), role, name)
    assert done.returncode == 2
    assert "DIR ROLE NAME" in done.stderr or role == "client"
    assert {path: path.read_bytes() for path in certificates.iterdir()} == before


@pytest.mark.parametrize("role", list(Role))
def test_a_certificate_carries_name_and_role(certificates, role):
    """The deletion service knows who calls and what the caller may do."""
    run_script("make_certificates.sh", str(certificates), role, "hospital-0")
    pem = (certificates / "hospital-0.pem").read_bytes()
    assert caller_of_certificate(pem) == Caller("hospital-0", role)


def test_a_certificate_carries_several_roles(certificates):
    """One person may run the federation and decide; a client is that alone."""
    run_script("make_certificates.sh", str(certificates), "operator,officer", "bea")
    bea = caller_of_certificate((certificates / "bea.pem").read_bytes())
    assert (bea.name, bea.roles) == ("bea", (Role.OPERATOR, Role.OFFICER))
    assert script("make_certificates.sh", str(certificates), "operator,client", "eve").returncode == 2


def test_a_client_key_is_not_overwritten(tmp_path):
    """A client that loses its key is a new client."""
    run_script("make_supernode_key.sh", str(tmp_path / "key"))
    before = (tmp_path / "key").read_bytes()
    assert script("make_supernode_key.sh", str(tmp_path / "key")).returncode == 1
    assert (tmp_path / "key").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "arguments", "program"),
    [
        ("make_supernode_key.sh", (), "ssh-keygen"),
        ("make_certificates.sh", ("operator", "olga"), "openssl"),
    ],
)
def test_a_missing_program_is_named_before_anything_is_made(tmp_path, name, arguments, program):
    """A small image has neither OpenSSL nor OpenSSH's client."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "dirname", "id", "ls", "awk", "mkdir", "mktemp", "rm"):
        (tools / tool).symlink_to(shutil.which(tool))
    done = subprocess.run(
        ["sh", str(DEPLOY / name), str(tmp_path / "made"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tools)},
    )
    assert done.returncode == 1
    assert f"{program} is not installed" in done.stderr
    assert not (tmp_path / "made").exists()


def test_there_is_a_unit_for_each_service():
    """Four on the server host, one on a client host."""
    assert {unit.stem for unit in UNITS} == {
        "flower-superexec",
        "flower-superlink",
        "flower-supernode",
        "flower-unlearning",
        "flower-unlearning-supervisor",
    }


def test_the_node_configuration_reaches_flower_whole():
    """Read as a shell reads it, the example tells the SuperNode its id as a text, its part as a number."""
    command = f'. "{DEPLOY / "systemd" / "environment"}" && printf %s "$NODE_CONFIG"'
    read = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    settings = parse_config_args([read])
    assert settings["client-id"] == "hospital-0"
    assert settings["partition-id"] == 0
    assert settings["state-dir"] == "/var/lib/flower-unlearning/state"


def test_the_example_of_the_federations_file_is_a_runs(monkeypatch):
    """Each key exists, each option of the service is one, and the run's settings are allowed."""
    file = read_federation_file(DEPLOY / "federation.toml")
    assert RunSettings.from_run_config(file.run_settings()).rounds == 0
    monkeypatch.setenv("FLOWER_UNLEARNING_FILE", str(DEPLOY / "federation.toml"))
    status, said = run_program("flower-unlearn", "backup", "--help")
    assert status == 0
    assert "/var/lib/flower-unlearning/state" in said


HARDENING = {
    "UMask=0077",
    "ProtectSystem=strict",
    "ReadWritePaths=/var/lib/flower-unlearning",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged",
}
TRAINING = {"flower-superexec", "flower-supernode"}
LISTENING = {"flower-superlink", "flower-unlearning"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_writes_private_files_in_one_place_and_gains_no_rights(unit):
    """Memory that is written is executed only where PyTorch compiles as it runs."""
    lines = set(unit.read_text().splitlines())
    assert HARDENING - lines == set()
    assert f"MemoryDenyWriteExecute={'no' if unit.stem in TRAINING else 'yes'}" in lines
    # With systemd's usual 1,024, as many idle connections from other machines shut everybody out.
    assert "LimitNOFILE=65536" in lines or unit.stem not in LISTENING


def verdict_on_units(directory: Path, *changes: tuple[str, str]) -> str:
    """What systemd says of all units with `changes`, read in `directory` with programs that are there."""
    directory.mkdir()
    for unit in UNITS:
        text = unit.read_text()
        name = Path(unit_command(unit)[0]).name
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o700)
        for old, new in (("/opt/flower-unlearning/bin/" + name, str(directory / name)), *changes):
            text = text.replace(old, new)
        (directory / unit.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(directory.glob("*.service")))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return done.stderr or ("" if done.returncode == 0 else f"status {done.returncode}")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_understands_every_line_of_the_units(tmp_path):
    """Each key is one that it knows, in its section, and what is started can be; one letter less and it says so."""
    assert verdict_on_units(tmp_path / "same") == ""
    assert "Usr" in verdict_on_units(tmp_path / "changed", ("User=flower", "Usr=flower"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_little_that_a_unit_leaves_open(unit):
    """Of 10, which is everything; the units were at 9.2 without these lines, and are at 1.4."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_what_the_scripts_make_is_private_but_for_certificates(tmp_path):
    """Whatever the umask: keys of mode 600 in directories of mode 700; certificates and public keys are for all."""
    careless = 'umask 000; exec sh "$0" "$@"'
    for name, *arguments in (
        ("make_certificates.sh", "far/certificates", "server", "fed.example.org"),
        ("make_certificates.sh", "far/certificates", "operator", "operator"),
        ("make_supernode_key.sh", "near/key"),
    ):
        command = ["sh", "-c", careless, str(DEPLOY / name), *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    open_ones = {path.name for path in open_to_others(tmp_path.iterdir())}
    assert open_ones - {"ca.crt", "server.pem", "operator.pem", "key.pub"} == set()


def programs_of(command: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """A program with its subcommand, and its options; what stands behind `--` is the SuperNode's."""
    (executable, *arguments), behind = list(command), []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, behind = arguments[:at], arguments[at + 1 :]
    name = Path(executable).name
    subcommand = arguments[:1] if name in ("flower-unlearn", "flower-unlearn-site") else []
    yield [name, *subcommand], [word for word in arguments if word.startswith("--")]
    if behind:
        yield ["flower-supernode"], [word for word in behind if word.startswith("--")]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_units_options_are_the_programs(unit, monkeypatch):
    """Each option of the unit's command exists in the installed version of its program."""
    for name, value in {**FLOWER_ENVIRONMENT, "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    for command, options in programs_of(unit_command(unit)):
        status, shown = run_program(*command, "--help")
        assert status == 0
        assert options or command[-1] in ("supervise", "node")
        assert [option for option in options if option not in shown] == []


@pytest.mark.slow
def test_the_superlinks_unit_opens_the_fleet_port_alone(certificates, tmp_path):
    """As the unit starts it, the SuperLink serves the fleet on every address and the rest on loopback."""
    control, fleet = free_ports(2)
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    text = shlex.join(unit_command(DEPLOY / "systemd" / "flower-superlink.service"))
    for old, new in {
        "/opt/flower-unlearning/bin/flower-superlink": program("flower-superlink"),
        "/etc/flower-unlearning/certificates": str(certificates),
        "/etc/flower-unlearning/superexec.secret": str(tmp_path / "secret"),
        "/var/lib/flower-unlearning": str(tmp_path),
        "--port 8000": f"--port {control}",
        ":9092": f":{fleet}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    superlink = ProcessGroup(
        "superlink",
        shlex.split(text),
        environment=flower_environment(tmp_path / "flower"),
        directory=tmp_path,
    )
    superlink.start()
    try:
        while not (can_connect("127.0.0.1", control) and can_connect("127.0.0.1", fleet)):
            assert superlink.is_running, superlink.log_text()
            time.sleep(0.1)
        # 127.0.0.2 stands for the machine's other addresses: bound to 127.0.0.1 is closed there.
        assert can_connect("127.0.0.2", fleet)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", control), timeout=5)
    finally:
        superlink.kill()
