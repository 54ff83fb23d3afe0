"""`flower-unlearn check` finds nothing in a good installation, and each fault in a bad one, with its remedy."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from server.cli import app
from server.ledger import WAITING, ClientRecord, Ledger, RoundRecord
from server.ledger.database import Database
from server.operations.checklist import Finding, Installation, Level, inspection
from server.operations.checklist.kept_data import check_ledger
from server.operations.checklist.keys_and_state import check_certificates, check_secrets, check_state
from server.operations.checklist.ports import (
    can_connect,
    check_from_outside,
    check_ports,
    check_server_address,
)
from server.operations.checklist.processes import (
    Node,
    check_let_in,
    check_processes,
    check_starts,
    check_versions,
    installed_at,
    nodes_here,
)
from server.operations.checklist.services import check_units
from server.state_directory.ledger_address import ledger_url
from strategies.installation import Host, run_script
from tests.deletion_service import free_port
from tests.ledgers import live_at, submit
from unlearning.requests import Granularity, Target
from unlearning.runtime.durable_files import write_atomically

NOW = datetime.now(UTC) + timedelta(hours=1)  # certificates made by the tests are valid then
SUPERLINK = (
    "/opt/f/bin/python3 /opt/f/bin/flower-superlink --ssl-keyfile server.key --enable-supernode-auth "
    "--host 127.0.0.1 --port 8000 --isolation process"
)
HELPERS = ["/opt/f/bin/python3 /opt/f/bin/flower-superexec", "python3 /opt/f/bin/flower-unlearn supervise"]
FLEET_AND_SERVICE = [("0.0.0.0", 9092), ("0.0.0.0", 9100)]
MOUNTS = [("/", "ext4")]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Path:
    """Certificates and keys by the scripts that an administrator uses."""
    directory = tmp_path_factory.mktemp("made")
    for arguments in (("server", "federation.example.org"), ("operator", "ada")):
        run_script("make_certificates.sh", str(directory / "certificates"), *arguments)
    secret = directory / "superexec.secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    return directory


@pytest.fixture
def good(made_once, tmp_path) -> Installation:
    """An installation without a fault, for a test to spoil."""
    config, state = tmp_path / "etc", tmp_path / "state"
    shutil.copytree(made_once, config)
    (config / "certificates" / "ca.key").unlink()
    state.mkdir(mode=0o700)
    Ledger.open(f"sqlite:///{state / 'ledger.db'}").close()
    return Installation(config_dir=config, state_dir=state)


@pytest.fixture
def ledger(good) -> Iterator[Ledger]:
    """Its ledger."""
    opened = Ledger.open(ledger_url(good.state_dir))
    yield opened
    opened.close()


def faults(findings: Iterable[Finding]) -> list[str]:
    """What is not as it should be; each comes with a remedy."""
    wrong = [finding for finding in findings if finding.level is not Level.OK]
    assert all(finding.mend for finding in wrong)
    return [f"{finding.level}: {finding.what}" for finding in wrong]


def test_a_good_installation_has_no_faults(good):
    """Neither a warning nor a problem."""
    assert faults(check_secrets(good)) == []
    assert faults(check_certificates(good, now=NOW)) == []
    assert faults(check_state(good, mounts=MOUNTS, free_bytes=10**12)) == []
    assert faults(check_processes([SUPERLINK, *HELPERS], good)) == []
    assert faults(check_ports([("127.0.0.1", 8000), *FLEET_AND_SERVICE], good)) == []
    assert faults(check_ledger(good, now=NOW)) == []
    assert faults(check_versions()) == []


def test_a_key_that_others_can_read_is_a_problem(good):
    """With its mode."""
    (good.config_dir / "superexec.secret").chmod(0o640)
    [fault] = faults(check_secrets(good))
    assert "superexec.secret can be read by others (mode 640)" in fault


def test_the_authoritys_key_on_the_server_is_a_warning(good):
    """Who takes the server over takes every role."""
    key = good.config_dir / "certificates" / "ca.key"
    key.write_text("x")
    key.chmod(0o600)
    [fault] = faults(check_secrets(good))
    assert fault.startswith("warning")


def test_an_empty_configuration_is_a_problem(tmp_path):
    """More likely the wrong directory."""
    assert "no key" in faults(check_secrets(Installation(config_dir=tmp_path)))[0]


@pytest.mark.parametrize(
    ("days", "words"),
    [
        pytest.param(-2, "problem: {} is valid from", id="too early"),
        pytest.param(825 - 10, "warning: {} expires on", id="ten days before its end"),
        pytest.param(365 * 30, "problem: {} expired on", id="too late"),
    ],
)
def test_a_certificate_is_valid_at_its_time_only(good, days, words):
    """Seen from two days ago, and from later."""
    found = faults(check_certificates(good, now=NOW + timedelta(days=days)))
    assert any(
        fault.startswith(words.format(good.config_dir / "certificates" / "server.pem")) for fault in found
    )
    assert all(words.partition("{}")[2] in fault for fault in found)


def test_a_certificate_of_another_authority_is_a_problem(good, made_once, tmp_path):
    """As after a new authority was made on one host only."""
    run_script("make_certificates.sh", str(tmp_path / "other"), "operator", "eve")
    shutil.copy(tmp_path / "other" / "eve.pem", good.config_dir / "certificates")
    [fault] = faults(check_certificates(good, now=NOW))
    assert "eve.pem is not signed by the authority" in fault
    both = made_once / "certificates" / "ca.crt", tmp_path / "other" / "ca.crt"
    (good.config_dir / "certificates" / "ca.crt").write_text("".join(path.read_text() for path in both))
    assert faults(check_certificates(good, now=NOW)) == []


def test_a_key_of_another_certificate_is_a_problem(good):
    """Two pairs mixed up."""
    certificates = good.config_dir / "certificates"
    shutil.copy(certificates / "ada.key", certificates / "server.key")
    [fault] = faults(check_certificates(good, now=NOW))
    assert "server.key is not the key of" in fault


def test_a_damaged_certificate_is_a_problem(good):
    """Not a stack trace."""
    (good.config_dir / "certificates" / "ada.pem").write_text("garbage")
    [fault] = faults(check_certificates(good, now=NOW))
    assert "ada.pem is no certificate" in fault


def test_a_state_directory_is_private_local_and_has_room(good):
    """Three faults at once."""
    good.state_dir.chmod(0o755)
    mounts = [*MOUNTS, (str(good.state_dir.parent.resolve()), "nfs4")]
    found = faults(check_state(good, mounts=mounts, free_bytes=10**9))
    assert ["open to others" in found[0], "nfs4" in found[1], "0.9 GiB left" in found[2]] == [True] * 3
    assert (
        "no state directory"
        in faults(check_state(Installation(state_dir=good.state_dir / "x"), mounts=[]))[0]
    )


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ([SUPERLINK.replace("--isolation process", ""), *HELPERS], "inside of its own process"),
        ([SUPERLINK.replace("--enable-supernode-auth", ""), *HELPERS], "admits every node"),
        ([SUPERLINK.replace("--ssl-keyfile server.key", "--insecure"), *HELPERS], "--insecure"),
        ([SUPERLINK.replace("-superlink", "-superlink-x"), *HELPERS], "No flower-superlink is running"),
        ([SUPERLINK, HELPERS[0]], "supervise` is running"),  # nobody starts a ServerApp again
        ([SUPERLINK, HELPERS[1]], "No flower-superexec"),
    ],
)
def test_a_program_that_is_dead_or_started_wrongly_is_a_problem(good, commands, words):
    """Each option that protects the SuperLink, and each program beside it."""
    [fault] = faults(check_processes(commands, good))
    assert words in fault


def test_a_server_that_has_no_address_or_does_not_answer_is_a_problem():
    """On a client's host, by the name that it was given."""
    [fault] = faults(check_server_address("nowhere.invalid", can_connect=lambda *_: True))
    assert "nowhere.invalid has no address here" in fault
    [fault] = faults(check_server_address("localhost", can_connect=lambda *_: False))
    assert "does not answer at port 9092" in fault
    for name in ("localhost", "192.0.2.7", "[2001:db8::7]"):
        assert faults(check_server_address(name, can_connect=lambda *_: True)) == []


def test_a_run_that_waits_or_does_not_sign_is_a_warning(good, ledger):
    """With whom it waits for, and what to do."""
    write_atomically(good.state_dir / "settings.json", b'{"certificate-key": ""}')
    [fault] = faults(check_state(good, mounts=MOUNTS, free_bytes=10**12))
    assert "does not sign" in fault
    token = ledger.acquire_fence("test", now=NOW)
    live_at(ledger, token, NOW).set_facts({WAITING: {"text": "Waiting for 3 client(s)."}})
    [fault] = faults(check_ledger(good, now=NOW))
    assert "Waiting for 3 client(s)." in fault


def test_a_client_host_needs_a_supernode_and_no_superlink():
    """What is asked of a server is not asked of it."""
    client = Installation(is_server=False)
    assert faults(check_processes(["python /x/flower-supernode --superlink fed:9092"], client)) == []
    assert faults(check_ports([("127.0.0.1", 9094)], client)) == []
    assert "--insecure" in faults(check_processes(["flower-supernode --insecure"], client))[0]
    node = "python /x/flower-unlearn-site node -- --superlink s"
    assert faults(check_processes([node], client)) == []  # `check_let_in` looks at it


@pytest.mark.parametrize(
    ("age_s", "supernode_age_s", "expected"),
    [
        (20, 3, "warning: `flower-unlearn-site node` was just started"),  # perhaps a lease that has not ended
        (300, 3, "problem: The server has not let this site's SuperNode in for 300 s."),
        (300, None, "problem: The server has not let this site's SuperNode in for 300 s."),
        (300, 299, ""),
    ],
)
def test_a_supernode_that_the_server_does_not_let_in_is_a_problem(age_s, supernode_age_s, expected):
    """Revoked, or never registered: it is started again, and so runs at most of the times that one looks."""
    supernode = None if supernode_age_s is None else timedelta(seconds=supernode_age_s)
    found = faults(check_let_in([Node(age=timedelta(seconds=age_s), supernode_age=supernode)]))
    assert len(found) == bool(expected)
    assert all(fault.startswith(expected) for fault in found)


def test_a_supernode_is_found_below_the_node_that_starts_it(tmp_path):
    """With its age."""
    for name, text in (
        ("flower-unlearn-site", "./flower-supernode & wait"),
        ("flower-supernode", "sleep 60"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    process = subprocess.Popen(["./flower-unlearn-site", "node"], cwd=tmp_path, start_new_session=True)
    try:
        here = psutil.Process(process.pid)
        here.info = {"cmdline": ["sh", "./flower-unlearn-site", "node"]}
        deadline = time.monotonic() + 20.0
        while [node.supernode_age is None for node in nodes_here([here])] != [False]:
            assert time.monotonic() < deadline
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def units_of_a_host(installation: Installation, names: Iterable[str]) -> None:
    """As `setup` writes them, for a user of another name."""
    installation.units_dir.mkdir()
    root = installation.state_dir.parent
    host = Host(
        say=lambda _: None,
        config_dir=installation.config_dir,
        state_root=root,
        units_dir=installation.units_dir,
        user="fl",
    )
    for name in names:
        host.unit(name)


SERVER_UNITS = ("flower-superexec", "flower-superlink", "flower-unlearning", "flower-unlearning-supervisor")


def test_a_unit_that_is_missing_or_of_another_version_is_named(good, tmp_path):
    """As after an upgrade that brought one, or changed one; a host without units is one with containers."""
    here = replace(good, units_dir=tmp_path / "units")
    assert list(check_units(here)) == []
    units_of_a_host(here, SERVER_UNITS)
    assert faults(check_units(here)) == []
    supervisor, service = here.unit("flower-unlearning-supervisor"), here.unit("flower-unlearning")
    supervisor.unlink()
    service.write_text(service.read_text().replace("UMask=0077\n", ""))
    assert faults(check_units(here)) == [
        f"warning: {service} is not this version's: an earlier one's, or changed by hand.",
        f"problem: There is no unit {supervisor}, which this version has.",
    ]


def test_another_federation_of_this_machine_is_not_looked_at(good):
    """Its processes name files of their own; one that names none is checked."""
    ours = [
        "/opt/f/bin/flower-superlink",
        "--database",
        str(good.superlink_database),
        "--ssl-keyfile",
        "/x/key",
    ]
    assert inspection.belongs(ours, good)
    assert not inspection.belongs([word.replace("/var/lib", "/srv/other") for word in ours], good)
    assert inspection.belongs(["/opt/f/bin/flower-superlink", "--insecure"], good)
    assert inspection.belongs(["supervise", f"{good.config_dir}/federation.toml"], good)
    assert not inspection.belongs(["supervise", "/srv/other/federation.toml"], good)


@pytest.mark.parametrize("address", ["0.0.0.0", "10.0.0.10", "::"])
def test_a_control_port_that_is_open_to_others_is_a_problem(good, address):
    """Port 8000, whose callers are not checked; as IPv6 writes loopback, it is not."""
    loopback = [("::1", 8000), ("::ffff:127.0.0.1", 8000), *FLEET_AND_SERVICE]
    assert faults(check_ports(loopback, good)) == []
    [fault] = faults(check_ports([(address, 8000), *loopback], good))
    assert f"Port 8000 (control and runtime of the SuperLink) listens at {address};" in fault


def test_a_service_that_others_cannot_reach_is_named(good):
    """Fleet on loopback, no deletion service."""
    assert faults(check_ports([("127.0.0.1", 9092)], good)) == [
        "warning: Port 9092 (fleet) listens on this host only.",
        "problem: Nothing listens at port 9100 (deletion service).",
    ]


def test_what_listens_and_what_is_mounted_is_seen():
    """As the kernel tells it: a socket of IPv4, one of both, and the root directory."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both,
    ):
        listening = inspection.listening_sockets()
        assert ("127.0.0.1", one.getsockname()[1]) in listening
        assert ("::", both.getsockname()[1]) in listening
    assert "/" in dict(inspection.mounted_file_systems())


def test_from_outside_public_ports_answer_and_private_ones_do_not():
    """The other way round, all five are problems."""
    as_it_should = {9092, 9100}
    assert faults(check_from_outside("fed", can_connect=lambda _host, port: port in as_it_should)) == []
    wrong = faults(check_from_outside("fed", can_connect=lambda _host, port: port not in as_it_should))
    assert len(wrong) == 5


def test_a_connection_is_really_tried():
    """To a port where nobody listens."""
    assert not can_connect("127.0.0.1", free_port())
    with socket.create_server(("127.0.0.1", 0)) as one:
        # Brackets are IPv6's, which not every host has.
        assert can_connect("[127.0.0.1]", one.getsockname()[1])


def filed(ledger: Ledger) -> None:
    for label in (1, 2):
        submit(ledger, Target(Granularity.CLASS, class_label=label), key=str(label), now=NOW)


def test_a_ledger_that_was_changed_past_the_program_is_a_problem(good, ledger):
    """The first event that does not fit is named."""
    filed(ledger)
    with closing(sqlite3.connect(good.state_dir / "ledger.db")) as connection, connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE events SET actor = 'eve' WHERE sequence = 2")
    [fault] = faults(check_ledger(good, now=NOW))
    assert "Event 2 does not follow from those before it" in fault


@pytest.mark.parametrize(
    ("rounds", "is_online", "expected"),
    [
        ([("12", ""), ("1", "2"), ("1", "2")], True, "rounds 2, 3"),
        ([("1", "2"), ("1", "2"), ("12", "")], True, ""),  # it has answered since
        ([("12", ""), ("1", "2")], True, ""),  # one message may be late
        ([("1", "2"), ("1", ""), ("1", "2")], True, "rounds 1, 3"),  # not asked in between
        ([("1", "2"), ("1", "2")], False, ""),
    ],
)
def test_a_client_that_is_online_and_answers_no_more_is_named(good, ledger, rounds, is_online, expected):
    """Two messages in a row; each round here says who answered and who was silent."""
    token = ledger.acquire_fence("test", now=NOW)
    live_at(ledger, token, NOW).register_clients([ClientRecord("1"), ClientRecord("2", online=is_online)])
    for number, (answered, silent) in enumerate(rounds, start=1):
        failed = dict.fromkeys(silent, "no answer within 1 s")
        metrics = {"participants": list(answered), "failed": failed, "silent": list(silent)}
        live_at(ledger, token).record_round(
            RoundRecord(round=number, kind="training", metrics=metrics, at=NOW)
        )
    found = faults(check_ledger(good, now=NOW))
    assert len(found) == bool(expected)
    assert all(f"Client 2 is online and gave no answer in {expected}." in fault for fault in found)


def test_an_event_of_the_future_says_that_the_clock_was_put_back(good, ledger):
    """By an hour; five minutes are nothing."""
    filed(ledger)
    assert faults(check_ledger(good, now=NOW - timedelta(minutes=4))) == []
    [fault] = faults(check_ledger(good, now=NOW - timedelta(hours=1)))
    assert "the clock was put back" in fault


def test_a_ledger_that_is_missing_or_no_ledger_is_a_problem(good):
    """Nothing is created by looking."""
    path = good.state_dir / "ledger.db"
    path.write_bytes(b"garbage" * 1000)
    assert "cannot be used" in faults(check_ledger(good, now=NOW))[0]
    path.unlink()
    assert "no ledger" in faults(check_ledger(good, now=NOW))[0]
    assert not path.exists()


def test_the_command_compares_the_newest_run_with_the_file(good):
    """That of the configuration's directory, or the one that is named."""
    (good.state_dir / "settings.json").write_text(json.dumps({"rounds": 3, "state-dir": str(good.state_dir)}))
    named = good.config_dir.parent / "named.toml"
    for path, options in (
        (good.config_dir / "federation.toml", []),
        (named, ["--federation-file", str(named)]),
    ):
        path.write_text(f'state-dir = "{good.state_dir}"\n[run]\nrounds = 5\n')
        given = ["--config-dir", str(good.config_dir), "--state-dir", str(good.state_dir)]
        ran = CliRunner().invoke(app, [*options, "check", *given])
        assert f"{path} is not what the newest run was started with" in ran.output
        assert "rounds is 3 in the run and 5 in the file" in ran.output


def test_the_command_ends_with_1_where_something_is_wrong(good):
    """And says it with its remedy; here, that nothing runs."""
    ran = CliRunner().invoke(
        app, ["check", "--config-dir", str(good.config_dir), "--state-dir", str(good.state_dir)]
    )
    assert ran.exit_code == 1
    assert "Nothing listens at port 9092" in ran.output
    assert "see deploy/README.md" in ran.output


def test_a_part_from_before_the_installation_or_the_last_change_of_the_file_is_named():
    """It runs the version before, or goes by the file before; SuperLink and SuperNode load neither."""
    now = installed_at()
    running = [("python /opt/bin/flower-unlearn serve", now - 1), ("/opt/bin/flower-superlink", now - 1)]
    later = [("/opt/bin/flower-unlearn supervise", now + 1), ("/opt/bin/flower-superexec", now + 1)]
    old, unaware = faults(check_starts([*running, *later], now, now + 2))
    assert old.startswith("problem: flower-unlearn has run since before flower-unlearning was installed")
    assert unaware.startswith("warning: flower-unlearning-supervisor was started before")
    assert faults(check_starts(later, now, now)) == []


def test_a_ledger_of_a_newer_version_is_a_problem(good):
    """In a sentence, and not as a fault of this program."""
    database = Database(ledger_url(good.state_dir))
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    [fault] = faults(check_ledger(good, now=NOW))
    assert "has schema 9999, and this program knows those up to" in fault
