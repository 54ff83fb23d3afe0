"""deploy/nginx-fleet.conf before a real SuperLink of Flower 1.40 or newer: SuperNodes pass, and nothing else does.

`make newest-flower` runs this where nginx is installed; Flower 1.39 has a port for the fleet alone.
"""

import http.client
import shutil
import ssl
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.deployment import LocalDeployment, supernode
from benchmarks.local_layout import Layout, free_ports
from benchmarks.process_group import ProcessGroup
from server.operations.flower_control import FLEET_SPEAKS_HTTP
from strategies.installation import DEPLOY
from strategies.tls_files import TlsFiles
from tests.federation import client
from tests.integration.conftest import REPOSITORY
from tests.integration.live_federation import SETTINGS, forget
from tests.waiting import WAIT_S

NGINX = shutil.which("nginx")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FLEET_SPEAKS_HTTP, reason="this Flower's fleet speaks gRPC at a port of its own"),
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed"),
]


def test_a_federation_forgets_behind_it(tmp_path: Path):
    """With TLS and registered keys; what controls the federation cannot be reached."""
    live = LocalDeployment(
        tmp_path / "federation",
        num_clients=2,
        app_dir=REPOSITORY,
        run_config={**SETTINGS, "num-clients": 2},
        secure=True,
        with_deletion_service=True,
    )
    layout, port = live.layout, free_ports(1)[0]
    for number in range(layout.num_clients):
        through = f"127.0.0.1:{port}"
        command = [
            through if word == layout.fleet_address else word for word in layout.supernode_command(number)
        ]
        live._add(supernode(number), command, layout.client_dir(number))
    layout.prepare()
    proxy = nginx(layout, port, tmp_path)
    try:
        with live:
            certificates = layout.certificates_dir
            tls = TlsFiles(layout.authority, certificates / "operator.pem", certificates / "operator.key")
            forget(live, client("1"), "puf-special", after_rounds=2, tls=tls)
            for path in ("/v1/control/list-runs", "/v1/runtime/pull-messages", "/health", "/docs"):
                assert status(layout, port, path) == 404
            assert status(layout, port, "/v1/fleet/../control/list-runs") == 404
            assert 400 <= status(layout, port, "/v1/fleet/pull-messages") < 500  # it is not signed
    finally:
        proxy.kill()


def nginx(layout: Layout, port: int, directory: Path) -> ProcessGroup:
    """Start nginx with the file of deploy/ at `port`; only its places and ports are this test's."""
    text = (DEPLOY / "nginx-fleet.conf").read_text()
    kept = "".join(
        f"    {name}_temp_path {directory}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    for old, new in {
        "user www-data;": f"user root;\npid {directory}/nginx.pid;",
        "http {\n": f"http {{\n{kept}",
        "/var/log/nginx": str(directory),
        "/etc/flower-unlearning/certificates": str(layout.certificates_dir),
        "127.0.0.1:8000": layout.control_address,
        "listen 9092": f"listen 127.0.0.1:{port}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (directory / "nginx.conf").write_text(text)
    command = [str(NGINX), "-p", str(directory), "-c", "nginx.conf", "-g", "daemon off;"]
    group = ProcessGroup("nginx", command, environment={}, directory=directory)
    group.start()
    return group


def status(layout: Layout, port: int, path: str) -> int:
    """Return how the proxy answers a call without a key."""
    context = ssl.create_default_context(cafile=str(layout.authority))
    with closing(
        http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=WAIT_S)
    ) as connection:
        connection.request("POST", path, body=b"")
        return connection.getresponse().status
