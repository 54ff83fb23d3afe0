"""What `setup` makes on the hosts; that a federation runs with it and deletes, test_guide.py tells."""

import shlex
from pathlib import Path

from server.operations.federation_toml import read_federation_file
from strategies.settings.run_config import RunSettings
from strategies.tls_files import TlsFiles
from tests.programs import run_program


class Places:
    """The directories of one host, which stand for those of /etc and /var/lib."""

    def __init__(self, root: Path) -> None:
        self.config, self.state, self.units = root / "etc", root / "var", root / "units"
        self.units.mkdir(parents=True)

    def options(self, *, all_of_them: bool = True) -> list[str]:
        options = ["--config-dir", str(self.config), "--user", ""]
        return options + (
            ["--state-root", str(self.state), "--units-dir", str(self.units)] if all_of_them else []
        )

    def environment(self) -> dict[str, str]:
        """What the environment's file sets, read as systemd and a shell read it."""
        lines = (self.config / "environment").read_text().splitlines()
        words = [word for line in lines for word in shlex.split(line, comments=True)]
        return dict(word.split("=", 1) for word in words if "=" in word)


def setup(*arguments: str) -> str:
    program_name = "flower-unlearn-site" if arguments[0] == "site" else "flower-unlearn"
    words = arguments[1:] if arguments[0] == "site" else arguments
    status, said = run_program(program_name, *words)
    assert status == 0, said
    return said


def test_doing_it_again_changes_nothing(tmp_path):
    """Neither keys nor settings that were edited; each is named as kept."""
    server, site = Places(tmp_path / "server"), Places(tmp_path / "site")
    calls = [
        ("setup", "server", "hearts", "fed.example.org", *server.options()),
        ("site", "setup", "hospital-0", "fed.example.org", "--data-dir", "/data", *site.options()),
    ]
    for call in calls:
        setup(*call)
    with (server.config / "federation.toml").open("a") as file:
        file.write("# mine\n")
    files = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    for call in calls:
        assert "made " not in setup(*call)
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == files


def test_what_setup_makes_is_private_and_passes_the_check(tmp_path):
    """No key is open to others, and `check` finds no problem in the files."""
    server = Places(tmp_path)
    said = setup("setup", "server", "hearts", "fed.example.org", "192.0.2.1", *server.options())
    assert "problem" not in said
    assert [path for path in server.config.rglob("*.key") if path.stat().st_mode & 0o077] == []
    assert f'config-dir = "{server.config}"' in (server.config / "federation.toml").read_text()
    assert (server.config / "superexec.secret").stat().st_size == 32


def test_a_site_must_say_which_data_it_has(tmp_path):
    """Before anything is made."""
    site = Places(tmp_path)
    status, said = run_program("flower-unlearn-site", "setup", "hospital-0", "fed", *site.options())
    assert status == 2
    assert "--data-dir names this site's own data" in said
    assert not site.config.exists()


def test_a_folder_that_is_not_whole_is_refused(tmp_path):
    """With what makes it."""
    server = Places(tmp_path)
    setup("setup", "server", "hearts", "localhost", *server.options())
    (tmp_path / "hospital-0").mkdir()
    status, said = run_program(
        *("flower-unlearn", "setup", "client", "hospital-0", str(tmp_path / "hospital-0")),
        *server.options(all_of_them=False),
    )
    assert status == 2
    assert "client-key.pub is not there" in " ".join(said.split())


def test_the_sessions_that_setup_prepares_have_their_files(tmp_path):
    """The server's are there, and the site's where `--answer` puts them."""
    server, site = Places(tmp_path / "server"), Places(tmp_path / "site")
    setup("setup", "server", "hearts", "fed.example.org", *server.options())
    file = read_federation_file(server.config / "federation.toml")
    run = RunSettings.from_run_config({**file.run_settings(), "transport": "session"})
    assert run.session_address == "fed.example.org:9101"
    tls = TlsFiles.from_settings(run.to_run_config())
    assert tls is not None
    tls.server_credentials()
    setup("site", "setup", "hospital-0", "fed.example.org", "--data-dir", "/data", *site.options())
    node = dict(word.split("=", 1) for word in shlex.split(site.environment()["NODE_CONFIG"]))
    names = [f"session-tls-{part}" for part in ("ca", "cert", "key")]
    expected = [site.config / name for name in ("ca.crt", "hospital-0.pem", "hospital-0.key")]
    assert [Path(node[name]) for name in names] == expected
