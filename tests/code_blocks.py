"""The shell blocks of README and docs/, each with what runs it. `python -m tests.code_blocks` prints the list.

Blocks of other kinds are run or read all together, page by page: see RUNNERS in tests/unit/test_documentation.py.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LIVE = "tests/integration/test_page_commands.py::test_commands_of_the_pages_do_what_the_pages_say"
ALONE = "tests/integration/test_page_commands.py::test_what_needs_no_federation_works"
TUTORIAL = "tests/integration/test_own_app.py::test_the_tutorial_is_followed_to_the_report"
HOSTS = "tests/integration/test_guide.py::test_the_guide_can_be_followed_as_it_stands"
GATE = ".ci/run"

FOLLOWED = {
    "how-to-set-up-a-site": HOSTS,
    "how-to-set-up-a-site-by-hand": HOSTS,
    "how-to-set-up-the-server": HOSTS,
    "how-to-set-up-the-server-by-hand": HOSTS,
    "how-to-start-the-federation": HOSTS,
    "how-to-install": HOSTS,
    "tutorial-three-machines": HOSTS,
    "how-to-approve-requests": LIVE,
    "how-to-audit-the-ledger": LIVE,
    "how-to-choose-a-method": LIVE,
    "how-to-file-a-request": LIVE,
    "how-to-handle-a-failed-deletion": LIVE,
    "how-to-hold-extend-or-refuse": LIVE,
    "how-to-prune-and-erase": LIVE,
    "how-to-set-a-privacy-budget": LIVE,
    "reference-commands": LIVE,
    "how-to-use-secure-aggregation": ALONE,
    "how-to-use-sessions": ALONE,
    "how-to-test-a-server-with-planted-noise": ALONE,
}
"""Pages of which one test runs every shell block."""
SINGLE: Mapping[tuple[str, int], str] = {
    ("README", 0): GATE,
    ("README", 3): LIVE,
    ("how-to-back-up-and-restore", 0): LIVE,
    ("how-to-check-a-certificate", 0): ALONE,
    ("how-to-check-a-certificate", 1): LIVE,
    ("how-to-give-people-access", 0): ALONE,
    ("how-to-give-people-access", 1): LIVE,
    ("how-to-keep-layers-at-each-site", 0): "tests/acceptance/test_local_layers.py",
    ("how-to-recheck-a-deletion", 0): LIVE,
    ("how-to-recheck-a-deletion", 2): LIVE,
    ("how-to-run-peers", 0): ALONE,
    ("reference-certificate", 0): LIVE,
    **{("tutorial-your-own-app", number): TUTORIAL for number in range(1, 7)},
}
"""Of other pages, by number."""
ELSEWHERE: Mapping[tuple[str, int], str] = {
    ("README", 1): "installing: the gate does it from a clone",
    ("README", 2): "a simulation of ten clients: `make demo-simulation` runs the same app",
    (
        "how-to-audit-with-retrained-models",
        0,
    ): "hours of training; tests/unit/benchmarks/bench has small ones",
    ("how-to-back-up-and-restore", 1): "stops a federation; tests/acceptance/test_backup.py restores",
    ("how-to-back-up-and-restore", 2): "as above, with certificates",
    ("how-to-check-a-certificate", 2): "needs an authority; tests/unit/server/certificate has one of its own",
    ("how-to-check-a-host", 0): "needs units of systemd; tests/integration/test_checklist.py",
    ("how-to-check-a-host", 1): "as above, at a site",
    (
        "how-to-compare-methods-on-your-app",
        0,
    ): "minutes of training; tests/unit/benchmarks/bench/test_own_app.py",
    ("how-to-connect-a-privacy-tool", 0): "tests/integration/test_http_api.py makes tokens by it",
    ("how-to-connect-a-privacy-tool", 1): "tests/integration/test_http_api.py sends the same calls",
    ("how-to-convert-an-app", 0): "tests/acceptance/test_converted_app.py runs the same app",
    ("how-to-keep-secrets", 0): "writes into /etc",
    ("how-to-move-the-server", 0): "takes two hosts and ssh",
    ("how-to-move-the-server", 1): "as above",
    ("how-to-receive-callbacks", 0): "runs until it is stopped; tests/integration/test_http_api.py",
    ("how-to-reproduce-the-papers", 0): "hours of training; tests/unit/benchmarks/bench has small ones",
    ("how-to-recheck-a-deletion", 1): "how a program is called; tests/integration/test_live_rechecks.py",
    ("how-to-run-in-containers", 0): "needs Docker; tests/integration/test_deploy_containers.py",
    ("how-to-run-peers", 1): "run until they are stopped; tests/integration/test_peers.py",
    ("how-to-simulate-on-several-machines", 0): "starts a cluster; tests/integration/test_ray_cluster.py",
    ("how-to-train-with-privacy", 0): "installing: an extra of pyproject.toml",
    ("how-to-train-with-privacy", 1): "`flower-unlearn demo --method dp-covered`",
    ("how-to-train-with-privacy-for-samples", 0): "installing: an extra of pyproject.toml",
    (
        "how-to-train-with-privacy-for-samples",
        1,
    ): "runs until it is stopped; tests/integration/test_sample_privacy_live.py",
    ("how-to-train-with-privacy-for-samples", 2): "tests/integration/test_sample_privacy_live.py",
    ("how-to-use-the-console", 0): "runs until it is stopped; tests/integration/console",
    ("how-to-use-your-own-data", 0): "tests/acceptance/test_pages.py trains on such files",
    ("how-to-write-an-experiment", 0): "minutes of training; tests/unit/benchmarks/bench reads the file",
    ("tutorial-compare-methods", 0): "as above",
    ("tutorial-your-own-app", 0): "installing: the gate does it from a clone",
}
"""Blocks that are parsed only, word by word, and what runs the same."""


@dataclass(frozen=True)
class ShellBlock:
    """One block. number: among the shell blocks of its page."""

    page: str
    number: int
    line: int
    text: str

    @property
    def run_by(self) -> str | None:
        """The test that runs it; None where none is named."""
        return SINGLE.get((self.page, self.number)) or FOLLOWED.get(self.page)


def shell_blocks(page: Path) -> Iterator[ShellBlock]:
    """Give the shell blocks of a page, without their indentation."""
    content = page.read_text(encoding="utf-8")
    for number, found in enumerate(re.finditer(r"(?ms)^( *)```sh\n(.*?)^ *```$", content)):
        line = content[: found.start()].count("\n") + 1
        text = re.sub(rf"(?m)^{found[1]}", "", found[2])
        yield ShellBlock(page.stem, number, line, text)


def all_shell_blocks() -> list[ShellBlock]:
    """Return those of README and docs/."""
    pages = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    return [block for page in pages for block in shell_blocks(page)]


if __name__ == "__main__":
    for one in all_shell_blocks():
        said = one.run_by or f"parsed; {ELSEWHERE.get((one.page, one.number), 'NOT RUN')}"
        print(f"{one.page}, line {one.line}: {said}")
