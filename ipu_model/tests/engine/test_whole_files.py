"""Files are written whole or not at all, whatever happens, and only regular files are read."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ipu_model.errors import Error
from ipu_model.report.files import read
from ipu_model.whole_files import check_writable, read_whole, write_text, write_whole

CALLS_OF_A_WRITE = ["fsync", "replace"]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Let no file of this process grow beyond 64 KiB, as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("before", [{}, {"file": b"old"}])
def test_a_full_disk_leaves_what_was_there_and_the_error_names_the_file(tmp_path, full_disk, before) -> None:
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(OSError, match=f"File too large: '{tmp_path / 'file'}'"):
        write_whole(tmp_path / "file", bytes(1 << 17))
    with pytest.raises(Error, match=f"{tmp_path / 'file'} cannot be written: File too large"):
        write_text(tmp_path / "file", " " * (1 << 17))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("call", CALLS_OF_A_WRITE)
@pytest.mark.parametrize("problem", [KeyboardInterrupt("stop"), OSError("no number"), MemoryError("none")], ids=repr)
def test_so_does_whatever_stops_it(tmp_path, monkeypatch, call: str, problem: BaseException) -> None:
    write_whole(tmp_path / "file", b"old")
    monkeypatch.setattr(os, call, Mock(side_effect=problem))
    with pytest.raises(type(problem), match=str(problem)):
        write_whole(tmp_path / "file", b"new")
    assert contents(tmp_path) == {"file": b"old"}


def test_links_and_permissions_stay(tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "file", tmp_path / "link"
    link.symlink_to(file)
    for mode in (0o600, 0o644):
        write_whole(link, f"{mode}".encode())
        assert (link.is_symlink(), file.read_bytes()) == (True, f"{mode}".encode())
        file.chmod(mode)
        write_whole(link, b"again")
        assert stat.S_IMODE(file.stat().st_mode) == mode
    (tmp_path / "usual").touch()
    write_whole(tmp_path / "new", b"")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_names_as_long_as_the_system_allows(tmp_path) -> None:
    for name in ("a" * 255, "ü" * 127):
        write_whole(tmp_path / name, b"all")
        assert (tmp_path / name).read_bytes() == b"all"


def test_a_device_is_written_to_and_stays_one(tmp_path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("the system has no pipes with names")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", b"all")
    assert os.read(reader, 9) == b"all"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    write_whole(os.devnull, b"all")
    assert not Path(os.devnull).is_file()


MISTAKES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a folder": (lambda folder: folder, "Is a directory"),
    "a folder that is missing": (lambda folder: folder / "a" / "b", "No such file"),
    "a null byte": (lambda folder: f"{folder}/a\0b", "null byte"),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("work", [lambda path: write_whole(path, b""), lambda path: read_whole(path, 9)])
def test_a_path_that_cannot_work_is_named(tmp_path, name: str, work: Callable[[Any], Any]) -> None:
    make, words = MISTAKES[name]
    with pytest.raises(OSError, match=words) as refusal:
        work(make(tmp_path))
    assert refusal.value.filename == os.fspath(make(tmp_path))
    assert list(tmp_path.iterdir()) == []


class TestReading:
    @pytest.mark.parametrize("path", ["/dev/zero", "/dev/random", "pipe", "link to /dev/zero", "link to pipe"])
    def test_what_never_ends_is_refused_at_once(self, tmp_path, monkeypatch, path: str) -> None:
        monkeypatch.chdir(tmp_path)
        os.mkfifo("pipe")
        if path.startswith("link to"):
            os.symlink(path.removeprefix("link to "), "link")
            path = "link"
        alarm = signal.signal(signal.SIGALRM, Mock(side_effect=TimeoutError))
        signal.alarm(20)
        try:
            with pytest.raises(OSError, match=f"not a regular file: '{path}'"):
                read_whole(path, 1 << 20)
            with pytest.raises(Error, match=f"^.*{path} cannot be read: It is not a regular file"):
                read(Path(path))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, alarm)

    def test_as_many_bytes_are_read_as_are_allowed(self, tmp_path) -> None:
        (tmp_path / "file").write_bytes(b"abc")
        assert read_whole(tmp_path / "file", 3) == b"abc"
        with pytest.raises(OSError, match="at most 2 bytes"):
            read_whole(tmp_path / "file", 2)

    def test_files_that_tell_no_size_are_read_and_bounded(self) -> None:
        """Those of Linux's `/proc` are regular and of size 0."""
        if not os.path.exists("/proc/self/maps"):
            pytest.skip("there is no /proc")
        assert b"python" in read_whole("/proc/self/maps", 1 << 24)
        with pytest.raises(OSError, match="at most 100 bytes"):
            read_whole("/proc/self/maps", 100)


def test_a_page_can_be_written_where_it_is_checked(tmp_path) -> None:
    check_writable(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "a" / "b", "there is no folder")):
        with pytest.raises(Error, match=words):
            check_writable(path)
