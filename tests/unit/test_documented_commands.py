"""What the how-to pages tell people to type exists: commands, options, settings and files of this repository."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
import typer
import yaml

import client.cli
import client.peer.peer_cli
import server.cli
from client.peer.config import read_config
from server.operations.federation_toml import read_federation_file
from strategies.settings.run_config import RunSettings

ROOT = Path(__file__).parents[2]
HOW_TO = sorted((ROOT / "docs").glob("how-to-*.md"))
PAGES = [*HOW_TO, ROOT / "README.md", *sorted((ROOT / "docs").glob("tutorial-*.md"))]
ALL_PAGES = [
    *PAGES,
    *sorted((ROOT / "docs").glob("explanation-*.md")),
    *sorted((ROOT / "docs").glob("reference-*.md")),
]
PROGRAMS = {
    "flower-unlearn": server.cli.app,
    "flower-unlearn-site": client.cli.app,
    "flower-unlearn-peer": client.peer.peer_cli.app,
}


def blocks(page: Path, kind: str) -> Iterator[str]:
    """The fenced blocks of one kind, without their indentation."""
    text = page.read_text(encoding="utf-8")
    for indent, block in re.findall(rf"(?ms)^( *)```{kind}\n(.*?)^ *```$", text):
        yield re.sub(rf"(?m)^{indent}", "", block)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each line of a shell block, in whatever pipe it is."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(re.sub(r"(?<!\S)…(?!\S)", "", line), comments=True)
            except ValueError:
                continue  # a line within a here-document
            part: list[str] = []
            for word in [*words, "|"]:
                if word in ("|", ">", ">>", "&&", ";"):
                    yield part
                    part = []
                else:
                    part.append(word)


def check(command: click.Command, words: list[str]) -> None:
    """Parse the words as the program would.

    Raises:
        click.UsageError: there is no such command or option, or an argument too many.
    """
    context = click.Context(command, info_name=command.name)
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    if isinstance(command, click.Group):
        if rest:
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None, name
            check(found, rest)
    else:
        rest = [word for word in rest if word]
        assert not rest, f"{command.name} takes no {rest}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_exists(page: Path):
    """With the options that it is given."""
    for words in commands(page):
        for position, word in enumerate(words):
            if word in PROGRAMS:
                check(typer.main.get_command(PROGRAMS[word]), words[position + 1 :])
            if word.startswith("deploy/"):
                assert (ROOT / word).exists(), word


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_every_command_in_a_sentence_exists(page: Path):
    """A whole command in backquotes, perhaps with names in capitals."""
    for program, rest in re.findall(
        r"(?s)`(flower-unlearn(?:-\w+)?) ([^`]+)`", page.read_text(encoding="utf-8")
    ):
        with suppress(click.BadOptionUsage):  # an option is named, its value is not
            check(typer.main.get_command(PROGRAMS[program]), shlex.split(rest.replace("…", "")))


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_every_setting_of_a_page_is_one(page: Path, tmp_path: Path):
    """A block of TOML is a federation.toml whose run could be submitted."""
    for text in blocks(page, "toml"):
        path = tmp_path / "federation.toml"
        path.write_text(
            text if "state-dir" in tomllib.loads(text) else f'state-dir = "{tmp_path}"\n{text}', "utf-8"
        )
        RunSettings.from_run_config(read_federation_file(path).run_settings())


def test_the_peer_of_the_page_could_start(tmp_path: Path):
    """Its file is one that a peer takes, with files of its own in place of the page's."""
    [text] = blocks(ROOT / "docs" / "how-to-run-peers.md", "yaml")
    path = tmp_path / "a.yaml"
    values = yaml.safe_load(text)
    values["state-dir"] = str(tmp_path)
    del values["tls"]
    values["peers"] = {name: f"127.0.0.1:{9300 + n}" for n, name in enumerate(values["peers"])}
    path.write_text(yaml.safe_dump(values))
    assert read_config(path).peer == "a"
