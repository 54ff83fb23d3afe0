"""The pages of docs/ and README: length, words, links, and what runs each block of code."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.code_blocks import ELSEWHERE, FOLLOWED, SINGLE, all_shell_blocks
from unlearning.methods.registry import METHODS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = [DOCS / "results" / name for name in ("README.md", "claims.md", "pages.md")]
PAGES = sorted(DOCS.glob("*.md"))
BY_HAND = [*PAGES, ROOT / "README.md", *RESULTS]
BESIDE = [*ROOT.glob("examples/*/README.md"), ROOT / "deploy" / "README.md", ROOT / "CONTRIBUTING.md"]
TEMPLATES = [*ROOT.glob("server/*/templates/*.html"), *ROOT.glob("server/cli/new_app/*.txt")]
MOST_WORDS_IN_ALL = 28_000
MOST_WORDS = {"decision": 200, "how-to": 500}
"""By kind of page; 900 of every other."""

WORDS = (
    *(
        "nobody",
        "nobody's",
        "whoever",
        "somebody",
        "somebody's",
        "everybody",
        "everybody's",
        "anew",
        "for good",
    ),
    *(
        "again and again",
        "one who",
        "who asks",
        "who left",
        "what stands",
        "what became of",
        "what becomes of",
    ),
    *("so many", "has come to its end", "turned around", "let pass", "gives up", "given up"),
)
"""What a reader stumbles over; terms of the field and ordinary English take their place."""
ALLOWED: frozenset[tuple[str, str]] = frozenset()
"""Real uses, by page and word; none today."""

SHOWN = {
    "": "output, or how a command is called",
    "text": "output",
    "mermaid": "a picture",
    "{toctree}": "the site is built of it",
    "{eval-rst}": "the site is built of it",
}
"""Kinds of blocks that are no code."""
RUNNERS = {
    "{code-cell}": ["acceptance/test_pages.py"],
    "python": ["acceptance/test_pages.py", "acceptance/test_adding_a_method.py"],
    "toml": ["unit/test_documented_commands.py", "acceptance/test_pages.py"],
    "yaml": [
        "unit/test_documented_commands.py",
        "acceptance/test_pages.py",
        "unit/benchmarks/bench/test_bench.py",
    ],
    "json": ["unit/server/service/test_opendsr.py"],
    "diff": ["acceptance/test_converted_app.py"],
}
"""Which tests run or parse the blocks of a kind; each of them names the page, or all of its kind."""


def by_hand(path: Path) -> str:
    """What is to be read of a page: no code, nothing that a program writes, no table in which to look things up."""
    text = re.sub(r"(?s)<!-- (.+?) -->.*<!-- end of \1 -->", "", path.read_text(encoding="utf-8"))
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
    return re.sub(r"(?m)^\|.*$", "", text) if path.stem.startswith("reference-") else text


def num_words(text: str) -> int:
    """Words with a letter or digit in them; the lines of a table are none."""
    return sum(any(sign.isalnum() for sign in word) for word in text.split())


def most_words(path: Path) -> int:
    if path.name == "README.md":
        return 700 if path.parent == ROOT else 400
    return next((most for kind, most in MOST_WORDS.items() if path.stem.startswith(f"{kind}-")), 900)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", BY_HAND, ids=name_of)
def test_a_page_is_short(path):
    """It answers one question."""
    assert num_words(by_hand(path)) <= most_words(path)


@pytest.mark.parametrize(
    "path", [DOCS / f"reference-method-{name}.md" for name in METHODS], ids=lambda path: path.stem
)
def test_a_method_has_a_card_of_one_page(path):
    """200 to 350 words, with what the program writes of it."""
    assert 200 <= num_words(path.read_text(encoding="utf-8")) <= 350


def test_the_readme_counts_the_methods():
    """Those of this repository; no other is installed where tests run."""
    assert f"**{len(METHODS)} unlearning methods**" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_all_pages_together_can_be_read():
    """In two hours."""
    assert sum(num_words(by_hand(path)) for path in BY_HAND) <= MOST_WORDS_IN_ALL


@pytest.mark.parametrize("path", [*BY_HAND, *BESIDE, *TEMPLATES], ids=name_of)
def test_a_page_is_in_plain_words(path):
    """Help texts are on the pages of the commands, messages of settings on that of the settings."""
    text = " ".join(path.read_text(encoding="utf-8").lower().split())
    found = [word for word in WORDS if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)]
    assert [word for word in found if (name_of(path), word) not in ALLOWED] == []


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"))
    heads = re.findall(r"(?m)^#+ (.+)$", text)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads]
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in plain}


@pytest.mark.parametrize("path", [*BY_HAND, *BESIDE], ids=name_of)
def test_every_link_leads_somewhere(path):
    """To a file of the repository, and to a heading of it where it names one."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`\n]*`", "", text)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), target
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), target


def blocks(path: Path) -> Iterator[str]:
    """The kinds of a page's blocks of code."""
    for kind, _ in re.findall(r"(?ms)^ *```(\S*)[^\n]*\n(.*?)^ *```$", path.read_text(encoding="utf-8")):
        yield kind


def is_named(path: Path, test: str) -> bool:
    """Whether a test names the page, or all pages of its kind."""
    text = (ROOT / "tests" / test).read_text(encoding="utf-8")
    kind = path.stem.partition("-")[0]
    return any(
        name in text
        for name in (f'"{path.stem}"', f"{path.stem}.md", f'glob("{kind}-*.md")', f"{kind}-to-*.md")
    )


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=name_of)
def test_every_block_of_code_is_run_or_parsed_by_a_test(path):
    """Or it is output. Of shell blocks the next test says it one by one."""
    for kind in {*blocks(path)} - {*SHOWN, "sh"}:
        assert any(is_named(path, test) for test in RUNNERS[kind]), kind


def test_every_shell_block_is_run_by_a_test_or_it_is_said_why_not():
    """No more is listed than there is, and the tests that are named exist."""
    found = {(block.page, block.number): block.run_by for block in all_shell_blocks()}
    assert {place for place, test in found.items() if test is None} == set(ELSEWHERE)
    assert set(SINGLE) <= set(found)
    assert set(FOLLOWED) <= {page for page, _ in found}
    for path in re.findall(r"tests/[\w/.]+", " ".join(ELSEWHERE.values())):
        assert (ROOT / path).exists(), path
    for test in {*found.values()} - {None}:
        path, _, name = str(test).partition("::")
        assert (ROOT / path).exists()
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_pages_link_to_their_source_where_a_repository_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOSITORY", "https://example.org/flower-unlearning")
    options = runpy.run_path(str(ROOT / "docs" / "conf.py"))["html_theme_options"]
    assert options["source_repository"] == "https://example.org/flower-unlearning"
