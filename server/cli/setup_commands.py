"""`flower-unlearn setup`: a server host made ready, and clients let in."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from server.operations import host_setup as steps
from server.operations.federation_toml import read_federation_file
from server.operations.flower_control import FLEET_SPEAKS_HTTP, FlowerControl, flower_environment
from server.operations.starting import app_directory
from strategies.command_line import Printing, say, show_json, wants_json
from strategies.installation import CONFIG_DIR, DEPLOY, STATE_ROOT, UNITS_DIR, Host

app = typer.Typer(help="Make a server host ready, and let clients in.", no_args_is_help=True)

ConfigDir = Annotated[Path, typer.Option(help="Where certificates, keys and settings go.")]
StateRoot = Annotated[Path, typer.Option(help="Where the programs keep their state.")]
UnitsDir = Annotated[
    Path, typer.Option(help="Where systemd's units go; none are written if it is not there.")
]
User = Annotated[
    str, typer.Option(help="Who owns the files and runs the services; empty: the user who calls this.")
]


@app.command("server", cls=Printing)
def server(
    name: Annotated[str, typer.Argument(help="The federation's name, as reports call it.")],
    address: Annotated[
        list[str], typer.Argument(help="Names and addresses under which clients reach this host.")
    ],
    config_dir: ConfigDir = CONFIG_DIR,
    state_root: StateRoot = STATE_ROOT,
    units_dir: UnitsDir = UNITS_DIR,
    user: User = "flower",
) -> None:
    """Make keys, certificates, settings and units of the server host; doing it again changes nothing."""
    host = Host(say=say, config_dir=config_dir, state_root=state_root, units_dir=units_dir, user=user)
    steps.setup_server(host, name, address)
    wrong = steps.problems(host, address, now=datetime.now(UTC))
    for sentence in wrong:
        say(f"problem {sentence}")
    say(
        f"Next: look at {host.config_dir / steps.FEDERATION_FILE}; systemctl daemon-reload; "
        f"systemctl enable --now {' '.join(steps.SERVICES)}\n"
        f"At each site: flower-unlearn-site setup NAME {address[0]}. It makes a folder that is carried here, to\n"
        "  flower-unlearn setup client NAME FOLDER\n"
        f"Clients must reach 9092 (fleet), 9100 (deletion service) and {steps.SESSION_PORT} (sessions) of this host.\n"
        f"When the clients are let in: systemctl enable --now {steps.SUPERVISOR}, which submits the run.\n"
        f"Keep {host.config_dir / 'certificates' / 'ca.key'} elsewhere: it is needed for new certificates only."
    )
    if FLEET_SPEAKS_HTTP:
        say(
            f"This version of Flower needs nginx with {DEPLOY / 'nginx-fleet.conf'} to open 9092: "
            "see docs/how-to-run-behind-nginx.md."
        )
    if wants_json():
        show_json({"federation": name, "config_dir": str(host.config_dir), "problems": wrong})
    if wrong:
        raise typer.Exit(1)


@app.command("client", cls=Printing)
def client(
    name: Annotated[str, typer.Argument(help="The client's id in every deletion request.")],
    folder: Annotated[Path, typer.Argument(help="What its `flower-unlearn-site setup` made, carried here.")],
    config_dir: ConfigDir = CONFIG_DIR,
    user: User = "flower",
) -> None:
    """Let a client in: register its key with the SuperLink and sign its certificate."""
    file = read_federation_file(config_dir / steps.FEDERATION_FILE)
    host = Host(say=say, config_dir=config_dir, state_root=file.state_dir.parent, user=user)
    environment = flower_environment(host.state_root / "flower")
    control = FlowerControl(app_directory(file), file.superlink, environment=environment)
    node, answer = steps.let_in(host, control, name, folder)
    if wants_json():
        show_json({"client": name, "node": node, "answer": str(answer)})
    say(
        f"{name} is registered as node {node}. Carry {answer} to the site, and there:\n"
        f"  flower-unlearn-site setup {name} SERVER --answer {answer.name}"
    )
