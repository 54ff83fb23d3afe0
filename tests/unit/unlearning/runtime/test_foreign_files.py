"""Files in a folder that another party fills: plain ones are read, everything else is refused at once."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from unlearning.runtime.durable_files import partial_of, write_atomically
from unlearning.runtime.foreign_files import open_plain, read_plain


def linked_file(folder: Path) -> Path:
    (folder / "file").symlink_to("real")
    return folder / "file"


def dangling_link(folder: Path) -> Path:
    (folder / "file").symlink_to("nowhere")
    return folder / "file"


def linked_folder(folder: Path) -> Path:
    (folder / "link").symlink_to(folder)
    return folder / "link" / "real"


def linked_parent(folder: Path) -> Path:
    (folder / "inner").mkdir()
    (folder / "inner" / "real").write_text("inner")
    (folder / "link").symlink_to(folder)
    return folder / "link" / "inner" / "real"


def link_that_goes_back(folder: Path) -> Path:
    (folder / "link").symlink_to(folder)
    return folder / "link" / ".." / folder.name / "real"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "file")
    return folder / "file"


def directory(folder: Path) -> Path:
    (folder / "file").mkdir()
    return folder / "file"


def file_as_folder(folder: Path) -> Path:
    return folder / "real" / "file"


def name_of_another_system(folder: Path) -> Path:
    return folder / "a\0b"


BAD = [
    *(linked_file, dangling_link, linked_folder, linked_parent, link_that_goes_back, pipe, directory),
    *(file_as_folder, name_of_another_system, lambda _: Path("/dev/zero"), lambda folder: folder / "absent"),
]


@pytest.mark.parametrize("make", BAD, ids=[*(make.__name__ for make in BAD[:-2]), "device", "absent"])
def test_only_a_plain_file_is_opened(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Links in any part, pipes, devices and folders are refused without a wait."""
    (tmp_path / "real").write_text("content")
    with pytest.raises(OSError, match=r"\[Errno"):
        open_plain(make(tmp_path))


def test_a_socket_is_refused(tmp_path: Path) -> None:
    """As everything that has no content of its own."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "file"))
        with pytest.raises(OSError, match="file"):
            open_plain(tmp_path / "file")


@pytest.mark.parametrize("name", ["plain", "-rf", "two\nlines", "spaced out", "\udcff"])
def test_a_plain_file_is_read_by_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By its whole path, and by one from where the program runs."""
    (tmp_path / name).write_bytes(b"content")
    monkeypatch.chdir(tmp_path)
    assert read_plain(tmp_path / name) == read_plain(Path(name)) == b"content"


def test_a_file_without_a_bound_is_refused_by_its_size(tmp_path: Path) -> None:
    """A sparse file of a terabyte takes no room on the sender's disk."""
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="longer than 1,000 bytes"):
        read_plain(tmp_path / "file", 1_000)


@pytest.mark.parametrize("at", ["pipe", "hard link", "link"])
def test_what_is_put_where_a_file_is_written_is_replaced(tmp_path: Path, at: str) -> None:
    """Under the name that the file has before it is whole, which others can foresee."""
    path, victim = tmp_path / "file", tmp_path / "victim"
    victim.write_text("mine")
    partial = partial_of(path)
    {
        "pipe": lambda: os.mkfifo(partial),
        "hard link": lambda: partial.hardlink_to(victim),
        "link": lambda: partial.symlink_to(victim),
    }[at]()
    write_atomically(path, b"content")
    assert path.read_bytes() == b"content"
    assert victim.read_text() == "mine"


def test_a_file_that_is_exchanged_for_a_link_is_never_followed(tmp_path: Path) -> None:
    """While one thread exchanges them, each reading gives the plain file or is refused."""
    secret, plain, link, file = (tmp_path / name for name in ("secret", "plain", "link", "file"))
    secret.write_text("secret")
    done = threading.Event()

    def exchange() -> None:
        while not done.is_set():
            plain.write_text("plain")
            plain.replace(file)
            link.symlink_to(secret)
            link.replace(file)

    thread = threading.Thread(target=exchange)
    thread.start()
    found = set()
    try:
        for _ in range(2_000):
            try:
                found.add(read_plain(file))
            except OSError:
                found.add(b"refused")
    finally:
        done.set()
        thread.join()
    assert found <= {b"plain", b"refused"}
