"""Files are saved whole or not at all: on a full disk, on one that cannot be written, under kill -9."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import faulty_disk as disk
import pytest

from neptune_lab import files
from neptune_lab.errors import FileError
from neptune_lab.files import LongRun, write_bytes, write_text

OLD, NEW = "old\n" * 100, "newer\n" * 100


def test_what_is_saved_is_what_was_given(tmp_path):
    path = tmp_path / "a" / "b.txt"
    assert write_text(path, "grüße\r\n", parents=True) == path
    assert path.read_bytes() == "grüße\r\n".encode()
    write_bytes(path, b"")
    assert path.read_bytes() == b""
    assert os.listdir(path.parent) == ["b.txt"]


@pytest.mark.parametrize("fault", [disk.full, disk.read_only, disk.interrupted])
@pytest.mark.parametrize("old", [OLD, None])
def test_the_old_file_survives_a_failure_at_any_operation(tmp_path, monkeypatch, fault, old):
    path = tmp_path / "record.json"

    def check():
        found = path.read_text() if path.exists() else None
        assert found in (old, NEW)  # new: only the sync of the folder after it failed
        assert os.listdir(tmp_path) == ([] if found is None else ["record.json"]), "nothing is left behind"
        path.unlink(missing_ok=True)
        if old is not None:
            path.write_text(old)

    if old is not None:
        path.write_text(old)
    assert disk.at_each(monkeypatch, lambda: write_text(path, NEW), fault, check) >= 5
    assert path.read_text() == NEW


def test_a_failure_names_the_file_and_what_helps(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    path.write_text(OLD)
    monkeypatch.setattr("neptune_lab.files.os", disk.FaultyDisk(1, disk.full))
    with pytest.raises(FileError, match=r"cannot write '.*record\.json': No space left .* is unchanged") as e:
        write_text(path, NEW)
    assert e.value.help == "free some space, or give a path on another disk"


@pytest.mark.parametrize(
    ("name", "message", "help"),
    [
        ("missing/a", "No such file or directory", "mkdir -p {}/missing"),
        ("a folder/a", "No such file or directory", "mkdir -p '{}/a folder'"),
        ("link", "No such file or directory", "mkdir -p {}/linked"),
        ("folder", "Is a directory", "give the path of a file"),
        ("file/a", "Not a directory", "a part of the path is a file"),
        ("a\0b", "null (byte|character)", "give another path"),
        ("a" * 300, "File name too long", "give a shorter name"),
        ("loop", "Too many levels of symbolic links", "give another path"),
    ],
)
def test_paths_that_cannot_be_written(tmp_path, name, message, help):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text(OLD)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "link").symlink_to(tmp_path / "linked" / "a")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(FileError, match=message) as caught:
        write_text(f"{tmp_path}/{name}", NEW)
    assert help.format(tmp_path) in (caught.value.help or "")
    assert sorted(os.listdir(tmp_path)) == before


def test_a_text_that_utf8_cannot_encode_is_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "a"
    path.write_text(OLD)
    with pytest.raises(FileError, match=r"the text has '\\udc80' at character 2, which UTF-8 cannot encode"):
        write_text(path, "ab\udc80")
    assert path.read_text() == OLD


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_permissions_are_kept(tmp_path, mode):
    path = tmp_path / "a"
    path.write_text(OLD)
    path.chmod(mode)
    write_text(path, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "a").touch()
    write_text(tmp_path / "b", NEW)
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_file_without_permission_to_write_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text(OLD)
    monkeypatch.setattr("neptune_lab.files.os.access", lambda *_: False)  # root may write everything
    with pytest.raises(FileError, match="Permission denied; the file that was there is unchanged"):
        write_text(path, NEW)
    assert path.read_text() == OLD


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    real, link = tmp_path / "folder" / "real", tmp_path / "link"
    real.write_text(OLD)
    link.symlink_to(real)
    write_text(link, NEW)
    assert link.is_symlink()
    assert real.read_text() == NEW


def test_devices_and_pipes_are_written_directly(tmp_path):
    write_text("/dev/null", NEW)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    script = "from neptune_lab.files import write_text; print('a', flush=True); write_text('/dev/stdout', 'b')"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    assert done.stdout == "a\nb"


KILL = """
import sys
sys.path[:0] = [{tests!r}]
import faulty_disk as disk, neptune_lab.files
neptune_lab.files.os = disk.FaultyDisk({at}, disk.killed)
neptune_lab.files.write_text({path!r}, {new!r})
"""


def test_a_process_killed_at_any_operation_leaves_one_whole_file(tmp_path):
    path, seen = tmp_path / "a", set()
    for at in range(50):
        path.write_text(OLD)
        script = KILL.format(tests=str(Path(disk.__file__).parent), at=at, path=str(path), new=NEW)
        done = subprocess.run([sys.executable, "-c", script], timeout=300)
        seen.add(path.read_text())
        if done.returncode != -signal.SIGKILL:
            break
    assert done.returncode == 0
    assert at >= 5
    assert seen == {OLD, NEW}


class TestLongRun:
    """A run that saves after each step goes on without its file, and loses nothing."""

    @pytest.fixture(autouse=True)
    def temporary(self, tmp_path, monkeypatch):
        folder = tmp_path / "temporary"
        folder.mkdir()
        monkeypatch.setattr("neptune_lab.files.tempfile.gettempdir", lambda: str(folder))
        return folder

    def test_a_disk_that_has_room_again_has_everything(self, tmp_path, monkeypatch):
        run = LongRun(tmp_path / "run.json")
        assert run.save("1") is None
        with monkeypatch.context() as patch:
            patch.setattr("neptune_lab.files.os", disk.FaultyDisk(0, disk.full))
            assert "not saved yet, and kept in memory: cannot write" in (run.save("12") or "")
            assert run.save("123") is None, "it is said once"
        assert run.path.read_text() == "1"
        run.finish()
        assert run.path.read_text() == "123"
        run.finish()

    def test_a_disk_that_stays_full_has_the_old_and_another_the_new(self, tmp_path, monkeypatch, temporary):
        run = LongRun(tmp_path / "run.json")
        run.save("1")
        real = files.write_text

        def write(path, text):
            if path.parent == tmp_path:
                raise FileError("cannot write: No space left on device", help="free some space")
            return real(path, text)

        monkeypatch.setattr(files, "write_text", write)
        run.save("12")
        with pytest.raises(FileError, match=r"No space left on device; everything is in '.*run-\d+\.json'"):
            run.finish()
        assert run.path.read_text() == "1"
        assert [path.read_text() for path in temporary.iterdir()] == ["12"]
