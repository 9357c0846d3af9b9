"""Input is parsed in linear time and memory; oversized input is refused."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import pytest

from planning.load_tests.serving import read_log
from simulators.core.errors import UserError
from sweeper.report import tables
from sweeper.space import space_file
from sweeper.store import keys


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["\n", " ", "a ", "mean ", "\t\n", "(req/s): ", '{"a":'], ids=repr)
def test_log_parsing_time_is_linear(text: str) -> None:
    with pytest.raises(UserError, match="no result"):
        read_log(text * 300_000, "log")


@pytest.mark.timeout(20)
def test_space_parsing_time_is_linear(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"simulator: '{'${' * 300_000}'\n")
    with pytest.raises(UserError):
        space_file.read_space(file)


def test_too_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("simulator: serving\naxes: {}\n")
    for reader in (space_file, tables):
        monkeypatch.setattr(reader, "_LONGEST", 10)
    for read in (space_file.read_space, tables.read_text):
        with pytest.raises(UserError, match="has 28 bytes"):
            read(file)


def test_short_ranges_cannot_expand_beyond_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_MOST", 1 << 20)
    with pytest.raises(ValueError, match="more than 1,048,576 bytes"):
        keys.unpacked(base64.b64encode(zlib.compress(bytes(1 << 24))).decode())
