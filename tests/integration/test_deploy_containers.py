"""The container files and the proxy example of deploy/ protect what the systemd units protect."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
COMPOSE = {path.name: yaml.safe_load(path.read_text()) for path in (DEPLOY / "docker").glob("compose.*.yaml")}
SERVICES = [(file, name) for file, content in sorted(COMPOSE.items()) for name in content["services"]]
PUBLISHED = {
    "superlink": {"9092:9092", "9101:9101"},
    "deletion-service": {"9100:9100", "127.0.0.1:9105:9105"},
}
PAIRS = [
    ("superlink", "flower-superlink"),
    ("superexec", "flower-superexec"),
    ("supervisor", "flower-unlearning-supervisor"),
    ("deletion-service", "flower-unlearning"),
    ("supernode", "flower-supernode"),
]


def service(name: str) -> dict[str, Any]:
    [found] = [content["services"][name] for content in COMPOSE.values() if name in content["services"]]
    return found


@pytest.mark.parametrize(("file", "name"), SERVICES)
def test_a_container_has_no_more_rights_than_it_needs(file, name):
    """Not root, no capabilities, nothing writable but its state, keys read-only."""
    one = COMPOSE[file]["services"][name]
    assert one["cap_drop"] == ["ALL"]
    assert one["read_only"] is True
    assert "no-new-privileges:true" in one["security_opt"]
    assert "privileged" not in one
    assert "user" not in one  # the image's
    writable = [volume for volume in one["volumes"] if not volume.endswith(":ro")]
    assert writable == ["/var/lib/flower-unlearning:/var/lib/flower-unlearning"]


def test_the_image_runs_as_an_ordinary_user():
    """The last USER counts."""
    assert re.findall(r"(?m)^USER (.+)$", DOCKERFILE)[-1] == "10001"
    assert "--uid 10001" in DOCKERFILE


@pytest.mark.parametrize(("file", "name"), SERVICES)
def test_only_ports_that_others_need_are_published(file, name):
    """Control and runtime of the SuperLink and of a SuperNode never; metrics on the host's loopback."""
    assert set(COMPOSE[file]["services"][name].get("ports", ())) == PUBLISHED.get(name, set())


def test_the_control_port_is_shared_with_those_who_need_it_only():
    """On the loopback of one network namespace."""
    inside = {name for _, name in SERVICES if service(name).get("network_mode") == "service:superlink"}
    assert inside == {"superexec", "supervisor"}


@pytest.mark.parametrize(("name", "unit"), PAIRS)
def test_a_container_runs_what_the_systemd_unit_runs(name, unit):
    """The same program with the same options, so that the two ways cannot grow apart."""
    text = (DEPLOY / "systemd" / f"{unit}.service").read_text().replace("\\\n", " ")
    [line] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    program, *arguments = shlex.split(line.removeprefix("ExecStart=/opt/flower-unlearning/bin/"))
    command = service(name)["command"]
    assert command[0] == program
    ours = {option.partition("=")[0] for option in command if option.startswith("--")}
    assert ours == {option for option in arguments if option.startswith("--")}


def test_no_secret_is_in_any_file_or_build():
    """Passwords and keys come from files of the host; the build sees named folders only."""
    for path in sorted((DEPLOY / "docker").iterdir()):
        assert not re.search(r"(?i)password|passwd|token|BEGIN ", path.read_text()), path
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().split("\n")
    assert "*" in ignored
    copied = {
        source
        for line in re.findall(r"(?m)^COPY (?!--from)(.+)$", DOCKERFILE)
        for source in line.split()[:-1]
    }
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    for name in copied:
        assert (REPOSITORY / name).exists(), name


def test_every_package_of_the_wheel_is_copied():
    """A new folder must not be missing from the image."""
    wheel = re.search(r"packages = \[(.+)\]", (REPOSITORY / "pyproject.toml").read_text())
    assert wheel is not None
    for package in re.findall(r'"(\w+)"', wheel[1]):
        assert f"COPY {package} {package}\n" in DOCKERFILE


def test_the_proxy_passes_tls_on_and_never_the_control_port():
    """It opens no TLS connection, so mutual TLS ends at the server."""
    text = re.sub(r"#.*", "", Path(DEPLOY / "nginx.conf").read_text())
    assert re.findall(r"listen (\d+);", text) == ["9092", "9100", "9101"]
    assert sorted(re.findall(r"server [\d.]+:(\d+);", text)) == ["9092", "9100", "9101"]
    assert not re.search(r"\bssl|http \{", text)
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("name", "clients"), [("nginx.conf", 3000), ("nginx-fleet.conf", 3000), ("nginx-http.conf", 900)]
)
def test_a_proxy_may_open_a_file_for_each_connection(name, clients):
    """A client's SuperNode and its session take two each; by default a third of 3,000 clients were let in."""
    text = (DEPLOY / name).read_text()
    files, connections = (
        int(re.search(rf"^ *{word} (\d+);", text, re.MULTILINE)[1])
        for word in ("worker_rlimit_nofile", "worker_connections")
    )
    assert files > connections >= (4 if clients > 900 else 2) * clients


def test_the_proxy_before_a_newer_fleet_passes_its_paths_alone():
    """Where fleet, control and runtime share the SuperLink's port (tried with a real one in test_fleet_proxy)."""
    text = re.sub(r"#.*", "", Path(DEPLOY / "nginx-fleet.conf").read_text())
    assert re.findall(r"listen (.+);", text) == ["9092 ssl"]
    places = dict(re.findall(r"location (\S+) \{(.+?)\}", text, re.DOTALL))
    assert set(places) == {"/v1/fleet/", "/"}
    assert places["/"].split() == ["return", "404;"]
    assert "proxy_ssl_verify on;" in places["/v1/fleet/"]
    assert re.findall(r"server ([\d.]+:\d+);", text) == ["127.0.0.1:8000"]
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    "command",
    [
        ("hadolint", "deploy/docker/Dockerfile"),
        (
            "check-jsonschema",
            "--builtin-schema=vendor.compose-spec",
            "deploy/docker/compose.server.yaml",
            "deploy/docker/compose.client.yaml",
        ),
    ],
    ids=["hadolint", "compose schema"],
)
def test_linters_find_nothing(command):
    """Those that the development environment installs."""
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run(
        [str(program), *command[1:]], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert command[0] != "hadolint" or done.stdout == ""
