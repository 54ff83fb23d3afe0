"""Samples that a site could train on and no longer has: it knows them from one load to the next."""

from pathlib import Path

import numpy as np
import pytest
import torch

from client import memory as kept
from client.memory import DirectoryMemory
from client.site_work import _no_longer_there
from unlearning.requests import NOTHING, Forget
from unlearning.runtime import durable_files
from unlearning.tasks import Examples


def load(directory: Path, ids: str, forgotten: Forget = NOTHING) -> list[str]:
    """Load a site's data as a new process does; return what is no longer there."""
    memory = DirectoryMemory(directory)
    examples = Examples(torch.zeros(len(ids), 1), torch.zeros(len(ids)), np.array(list(ids), dtype=np.str_))
    removed = _no_longer_there(memory.used_samples(), examples, forgotten)
    memory.note_samples([one for one in ids if one not in forgotten.sample_ids], removed)
    return removed


def test_a_removed_sample_is_known_until_it_is_back_or_forgotten(tmp_path: Path) -> None:
    """In the order in which they went."""
    assert load(tmp_path, "abcd") == []
    assert load(tmp_path, "abd") == ["c"]
    assert load(tmp_path, "bd") == ["c", "a"]
    assert load(tmp_path, "bcd") == ["a"]
    assert load(tmp_path, "bcd", Forget(sample_ids=frozenset("ab"))) == []
    assert load(tmp_path, "cd", Forget(sample_ids=frozenset("ab"))) == []
    assert load(tmp_path, "c", Forget(everything=True)) == []
    assert DirectoryMemory(tmp_path).sample_ids() == ["c"]


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
