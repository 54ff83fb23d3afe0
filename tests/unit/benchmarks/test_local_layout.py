"""What a local federation's programs are told, whichever way the installed Flower's fleet speaks."""

import pytest

from benchmarks import local_layout as layout
from benchmarks.local_layout import new_layout


@pytest.mark.parametrize("speaks_http", [False, True], ids=["gRPC", "HTTP"])
def test_supernodes_are_sent_where_the_fleet_is(speaks_http, tmp_path, monkeypatch):
    """To a port of the fleet's own by gRPC, to the SuperLink's one address over HTTP; the option goes with the port."""
    monkeypatch.setattr(layout, "FLEET_SPEAKS_HTTP", speaks_http)
    found = new_layout(tmp_path, num_clients=2, secure=False, node_config={})
    superlink, supernode = found.superlink_command(), found.supernode_command(1)
    host, _, port = found.control_address.partition(":")
    assert superlink[superlink.index("--host") + 1 :][0] == host
    assert superlink[superlink.index("--port") + 1 :][0] == port
    assert ("--fleet-api-address" in superlink) is not speaks_http
    assert (found.fleet_address == found.control_address) is speaks_http
    assert supernode[supernode.index("--superlink") + 1] == found.fleet_address
