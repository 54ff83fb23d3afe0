"""Samples that a site could train on and no longer has: it knows them from one load to the next."""

from pathlib import Path

import numpy as np
import pytest

from client import memory as kept
from client.memory import DirectoryMemory
from unlearning.runtime import durable_files


def load(directory: Path, ids: str, forgotten: str = "") -> list[str]:
    """Load a site's data as a new process does; return what is no longer there."""
    memory = DirectoryMemory(directory)
    usable = [one for one in ids if one not in forgotten]
    removed = memory.no_longer_there(usable, np.array(list(ids), dtype=np.str_))
    memory.note_samples(usable, removed)
    return removed


def test_a_removed_sample_is_known_until_it_is_back(tmp_path: Path) -> None:
    """In the order in which they went; one that was forgotten while it was there is known by its hash."""
    assert load(tmp_path, "abcd") == []
    assert load(tmp_path, "abd") == ["c"]
    assert load(tmp_path, "bd") == ["c", "a"]
    assert load(tmp_path, "bcd") == ["a"]
    assert load(tmp_path, "bcd", forgotten="b") == ["a"]
    assert load(tmp_path, "cd", forgotten="b") == ["a"]
    assert DirectoryMemory(tmp_path).sample_ids() == ["c", "d"]


def test_the_number_that_is_kept_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that keeps the data of a month removes some each day."""
    monkeypatch.setattr(kept, "MOST_REMOVED", 2)
    load(tmp_path, "abcd")
    load(tmp_path, "bcd")
    load(tmp_path, "d")
    assert DirectoryMemory(tmp_path).removed_samples() == ["b", "c"]


def test_it_is_known_after_a_crash_between_the_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of the two writes."""
    load(tmp_path, "abc")
    replace, done = durable_files.os.replace, []

    def dies(*arguments: str) -> None:
        done.append(replace(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(durable_files.os, "replace", dies)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            load(tmp_path, "ab")
    monkeypatch.undo()
    assert len(done) == 2
    assert load(tmp_path, "ab") == ["c"]
