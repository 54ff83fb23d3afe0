"""Held-out samples that could be trained on before: a site knows them from one load to the next."""

from pathlib import Path

import pytest

from client.memory import DirectoryMemory
from unlearning.runtime import durable_files


def test_a_sample_that_was_a_training_one_is_known_as_long_as_it_is_held_out(tmp_path: Path) -> None:
    """Each load by a new process."""
    late = [
        "".join(sorted(DirectoryMemory(tmp_path).note_samples(usable, held_out)))
        for usable, held_out in (
            ("abc", "de"),
            ("abd", "ce"),
            ("ab", "ce"),
            ("abc", "e"),
            ("a", "ce"),
            ("a", ""),
        )
    ]
    assert late == ["", "c", "c", "", "c", ""]
    assert DirectoryMemory(tmp_path).sample_ids() == ["a"]


def test_it_is_known_after_a_crash_between_the_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of the two writes."""
    DirectoryMemory(tmp_path).note_samples("abc", "de")
    replace, done = durable_files.os.replace, []

    def dies(*arguments: str) -> None:
        done.append(replace(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(durable_files.os, "replace", dies)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            DirectoryMemory(tmp_path).note_samples("ab", "ce")
    monkeypatch.undo()
    assert len(done) == 2
    assert DirectoryMemory(tmp_path).note_samples("ab", "ce") == {"c"}
