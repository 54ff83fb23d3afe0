"""What tests do to a deployment, and ask of it, that nobody else does."""

import os
import signal

from server.processes.deployment import LocalDeployment, supernode


def restart(deployment: LocalDeployment, name: str) -> None:
    """Kill one program, as a crash would, and start it again."""
    deployment.kill(name)
    deployment.start(name)


def kill_server_app(deployment: LocalDeployment) -> None:
    """End the ServerApp that runs now with SIGKILL; return when it is dead."""
    pid = deployment.server_app_pid()
    assert pid is not None, "no ServerApp runs"
    os.kill(pid, signal.SIGKILL)
    deployment.wait_until(lambda: deployment.server_app_pid() != pid, 5.0, "the ServerApp is dead")


def living_pids(deployment: LocalDeployment) -> list[int]:
    """List every living process that the deployment started or that those started."""
    return [process.pid for name in deployment.names for process in deployment._group(name).members()]


def connected_clients(deployment: LocalDeployment) -> list[int]:
    """List the clients whose SuperNode was given its node id since its last start."""
    return [
        client
        for client in range(deployment.layout.num_clients)
        if "SuperNode ID:"
        in deployment.log_text(supernode(client)).rpartition("Starting Flower SuperNode")[2]
    ]
