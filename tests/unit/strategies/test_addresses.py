"""Hosts and addresses as people give them."""

import socket

import pytest

from strategies.addresses import address_of, host_part, is_address, listening_place
from tests.raising import refuses
from unlearning.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("fed.example.org", "fed.example.org"),
        ("localhost", "localhost"),
        ("hospital_1", "hospital_1"),
        ("10.com", "10.com"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:DB8:0::7", "[2001:db8::7]"),
        ("[::1]", "[::1]"),
    ],
)
def test_a_host_is_written_as_it_stands_before_a_port(given, written):
    """Only an IPv6 address has brackets."""
    assert host_part(given) == written
    assert host_part(written) == written
    assert is_address(f"{written}:9100")


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a b",
        "-x",
        "a..b",
        ".a",
        "https://a",
        "a:1",
        "a/b",
        "300.1.1.1",
        "1.2.3",
        "fe80::1%eth0",
        "é",
        "a\n",
    ],
)
def test_what_is_no_host_is_refused(host):
    """Numbers that are no address are no name either."""
    with pytest.raises(ConfigurationError):
        host_part(host)
    assert not is_address(f"{host}:9100")


@pytest.mark.parametrize("port", ["", "x", "0", "-1", "65536", "1.5", "9100/"])
def test_a_port_is_a_number_of_one(port):
    """At which others can connect."""
    assert not is_address(f"localhost:{port}")
    assert not is_address("2001:db8::7:9100")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_server_says_its_address_as_a_url_has_it(host):
    """Port 0 takes a free one."""
    place, port, family = listening_place("metrics", f"{host}:0")
    try:
        listening = socket.create_server((place, port), family=family)
    except OSError:
        pytest.skip(f"{host} is no address of this machine")
    with listening:
        said = address_of(listening)
    assert said.startswith(f"{host}:")
    assert is_address(said)


@pytest.mark.parametrize(
    "address", ["", "9106", ":9106", "https://0.0.0.0:9106", "::1:9106", "a:x", "a:65536"]
)
def test_a_place_where_no_server_can_listen_is_refused(address):
    """By the setting that has it."""
    with refuses("metrics"):
        listening_place("metrics", address)
