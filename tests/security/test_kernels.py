"""Compiled kernels are pickles and load only from folders that only the user can write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulators.core import jit
from tests.conftest import ROOT

ALONE = "sweeper-kernels-"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a folder of temporary files that nothing has been kept in yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(jit.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    return tmp_path


def test_compiled_kernels_are_stored_in_a_private_folder(home: Path) -> None:
    ours = jit.cache_folder()
    assert ours.is_relative_to(home / "home")
    ours.parent.chmod(0o777)
    elsewhere = jit.cache_folder()
    assert elsewhere.is_relative_to(home / "tmp")
    elsewhere.chmod(0o777)
    alone = jit.cache_folder()
    assert alone.name.startswith(ALONE)
    assert alone.stat().st_mode & 0o077 == 0
    assert jit.cache_folder() != alone


def test_most_recent_kernel_versions_are_kept(home: Path) -> None:
    ours = jit.cache_folder()
    others = [ours.with_name(f"{n:016x}") for n in range(12)]
    for age, other in enumerate(others):
        (other / "module").mkdir(parents=True)
        (other / "module" / "kernel.nbc").write_bytes(b"compiled")
        os.utime(other, (1e9 - age, 1e9 - age))
    os.utime(ours, (1.0, 1.0))  # not used for longest, until now
    assert jit.cache_folder() == ours
    assert set(ours.parent.iterdir()) == {ours, *others[:7]}


def test_permissive_umask_keeps_the_cache_private(home: Path) -> None:
    """With a group-writable umask the kernel folder stays private."""
    before = os.umask(0o002)
    try:
        first = jit.cache_folder()
        (first / "kernel.nbi").write_bytes(b"")
        assert jit.cache_folder() == first
    finally:
        os.umask(before)


def test_unwritable_home_never_loads_foreign_pickles(home: Path) -> None:
    """Another user was first to make the folder of this user's temporary kernels."""
    (home / "home").write_text("no folder")
    planted = home / "tmp" / f"sweeper-{os.getuid()}"
    theirs = home / "theirs"
    theirs.mkdir()
    (home / "tmp").mkdir()
    planted.symlink_to(theirs)
    assert jit.cache_folder().name.startswith(ALONE)
    assert list(theirs.rglob("*.nbi")) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can plant files of others")
def test_foreign_cache_files_are_not_loaded(home: Path) -> None:
    ours = jit.cache_folder()
    planted = ours / "engine" / "planted.nbi"
    planted.parent.mkdir()
    planted.write_bytes(b"")
    assert jit.cache_folder() == ours
    os.chown(planted, 12345, 12345)
    assert jit.cache_folder() != ours
    planted.unlink()
    os.chown(ours.parent, 12345, 12345)
    assert jit.cache_folder() != ours


@pytest.mark.parametrize("named", ["", "relative"])
def test_current_folder_is_never_used_as_a_cache(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    monkeypatch.setenv("HOME", "nowhere")
    assert not jit.cache_folder().is_relative_to(workplace)
    assert list(workplace.iterdir()) == []


def test_temporary_cache_folder_is_removed_at_exit(home: Path) -> None:
    code = "from simulators.core import jit; print(jit.cache_folder())"
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.defpath, "HOME": str(home / "file")}
    (home / "file").write_text("")
    (home / "tmp").mkdir()
    (home / "tmp" / f"sweeper-{os.getuid()}").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "TMPDIR": str(home / "tmp")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(done.stdout.strip()).parent == home / "tmp"
    assert not Path(done.stdout.strip()).exists()
