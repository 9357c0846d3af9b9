"""Commands of the coverage page in an empty folder, from the files of both wheels alone.

No measured tables are there. Commands of `lab` need the laboratory's wheel beside the product's.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
NEEDS_TABLES = ("Frontier:", "ZigZag:")
"""Systems whose command replays a public trace, or compares mappings that may not be shipped."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of both wheels, as `pyproject.toml` lists them."""
    folder = tmp_path_factory.mktemp("site")
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    wheel = hatch["build"]["targets"]["wheel"]
    copies = {name: name for name in (*wheel["packages"], "lab")} | wheel["force-include"]
    for source, target in copies.items():
        shutil.copytree(ROOT / source, folder / target, dirs_exist_ok=True)
    return folder


def _systems() -> list[dict[str, object]]:
    text = (Path(__file__).parent / "systems.yaml").read_text(encoding="utf-8")
    entries: list[dict[str, object]] = yaml.safe_load(text)
    return entries


def _is_answered(entry: dict[str, object], site: Path, folder: Path) -> bool:
    for name, text in dict(entry.get("files", {})).items():  # type: ignore[call-overload]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for name in entry.get("copies", []):  # type: ignore[attr-defined]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(site / "formats" / "examples" / name, folder / name)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(site),
        "SWEEPER_TRUST": str(folder),
        "COLUMNS": str(entry.get("columns", 100)),
        # Compiled kernels are shared between commands; otherwise each would compile them again.
        "NUMBA_CACHE_DIR": str(site / "compiled"),
    }
    asked = entry["command"]
    commands = [*entry.get("before", []), *(asked if isinstance(asked, list) else [asked])]  # type: ignore[misc]
    for command in commands:
        words = shlex.split(str(command))
        module = "lab" if words[0] == "lab" else "sweeper"
        words = words[1:] if module == "lab" else words
        if words[0] == "ask":
            words += ["--run-with", "inline"]
        elif "=" in words[0]:
            words.append("engine=inline")
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
    said = " ".join((done.stdout + done.stderr).split())
    wanted: list[str] = entry.get("contains", [])  # type: ignore[assignment]
    return done.returncode == entry.get("exit", 0) and all(words in said for words in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("entry", _systems(), ids=lambda entry: str(entry["question"])[:40])
def test_command_runs_from_the_wheel_without_measured_tables(
    entry: dict[str, object], site: Path, tmp_path: Path
) -> None:
    if str(entry["question"]).startswith(NEEDS_TABLES):
        pytest.skip("needs tables that may not be shipped")
    if "needs" in entry:
        pytest.importorskip(str(entry["needs"]), reason="an extra is not installed")
    assert _is_answered(entry, site, tmp_path)


def test_at_most_three_systems_need_measured_tables() -> None:
    systems = _systems()
    needing = [one for one in systems if str(one["question"]).startswith(NEEDS_TABLES)]
    assert len(systems) >= 55
    assert len(needing) <= len(NEEDS_TABLES) <= 3
