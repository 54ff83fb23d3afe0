"""Hosts and addresses as people give them."""

import pytest

from strategies.addresses import host_part, is_address
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
