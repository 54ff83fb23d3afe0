"""How much memory a process can still take: of the machine, and of its control group."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from unlearning.runtime import peak_memory

GB = 10**9


@pytest.mark.parametrize(
    ("limit", "used", "files", "free"),
    [
        (str(4 * GB), 3 * GB, 0, GB),
        (str(4 * GB), 3 * GB, 2 * GB, 3 * GB),
        (str(4 * GB), 5 * GB, 0, 0),
        (str(40 * GB), GB, 0, 8 * GB),
        ("max", 3 * GB, 0, 8 * GB),
    ],
    ids=["limit", "pages of files give way", "over the limit", "the machine has less", "no limit"],
)
def test_the_tighter_of_machine_and_control_group_counts(monkeypatch, tmp_path, limit, used, files, free):
    """Of 8 GB that the machine has."""
    group = tmp_path / "groups" / "site.service"
    group.mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("4:memory:/other\n0::/site.service\n")
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 1\nactive_file {files // 2}\ninactive_file {files // 2}\n")
    look_at(monkeypatch, own, tmp_path / "groups")
    assert peak_memory.free_memory() == free


def test_without_a_control_group_the_machine_counts(monkeypatch, tmp_path):
    """As on other systems than Linux."""
    look_at(monkeypatch, tmp_path / "none", tmp_path)
    assert peak_memory.free_memory() == 8 * GB


def look_at(monkeypatch: pytest.MonkeyPatch, own: Path, groups: Path) -> None:
    """Let a machine with 8 GB have these files."""
    monkeypatch.setattr(peak_memory, "_OWN_GROUP", own)
    monkeypatch.setattr(peak_memory, "_GROUPS", groups)
    monkeypatch.setattr(peak_memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GB))
