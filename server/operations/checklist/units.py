"""Whether the systemd units of a host are those of the installed version."""

import re
from collections.abc import Iterator

from server.operations.checklist.finding import Finding, Installation, ok, problem, warning
from strategies.installation import DEPLOY, Host

SITES = "flower-supernode"
USER = re.compile(r"^User=(\S+)$", re.MULTILINE)
_WRITE = (
    "Give the `setup` command of this host again: it writes units and keeps all else. Then systemctl daemon-reload, "
    "and enable --now or restart it."
)


def check_units(installation: Installation) -> Iterator[Finding]:
    """Check that each unit of this version is there as it is; nothing where there is none, as with containers."""
    names = {path.stem for path in (DEPLOY / "systemd").glob("*.service")}
    wanted = sorted(names - {SITES}) if installation.is_server else [SITES]
    there = {name: installation.unit(name) for name in wanted if installation.unit(name).is_file()}
    for name in wanted if there else ():
        if name not in there:
            yield problem(f"There is no unit {installation.unit(name)}, which this version has.", _WRITE)
            continue
        text = there[name].read_text(encoding="utf-8")
        user = USER.search(text)
        host = Host(
            say=lambda _: None,
            config_dir=installation.config_dir,
            state_root=installation.state_dir.parent,
            user=user[1] if user else "",
        )
        if text == host.unit_text(name):
            yield ok(f"{there[name]} is this version's.")
        else:
            yield warning(
                f"{there[name]} is not this version's: an earlier one's, or changed by hand.",
                f"{_WRITE} Changes of your own belong into a drop-in (systemctl edit {name}).",
            )
