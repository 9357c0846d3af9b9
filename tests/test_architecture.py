"""Layers, protocols and module conventions."""

from __future__ import annotations

import dataclasses
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulators.core.contract import Simulator, load_simulator
from simulators.core.folder import SIMULATORS
from sweeper import engines, samplers
from sweeper.space import shipped_files
from tests.conftest import ROOT

PACKAGES = ("sweeper", "simulators", "planning", "formats")
MODULES = sorted(f for package in PACKAGES for f in (ROOT / package).rglob("*.py"))
NAMES = [str(f.relative_to(ROOT)) for f in MODULES]


def test_imports_follow_the_layers() -> None:
    script = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SIMULATORS.names())
def test_simulator_implements_the_protocol(name: str) -> None:
    simulator = load_simulator(name)
    assert isinstance(simulator, Simulator)
    assert simulator.name == name
    assert simulator.version >= 1
    for kind in (simulator.point, simulator.metrics):
        assert dataclasses.is_dataclass(kind)
        undocumented = [f.name for f in dataclasses.fields(kind) if not f.metadata.get("doc")]
        assert not undocumented, f"{kind.__name__} says nothing about {undocumented}"
    assert pickle.loads(pickle.dumps(simulator)) == simulator  # noqa: S301 - just written


@pytest.mark.parametrize("name", samplers.names())
def test_sampler_is_a_frozen_configuration(name: str) -> None:
    _check_options(samplers.options_of(name))


@pytest.mark.parametrize("name", engines.ENGINES)
def test_engine_is_a_frozen_configuration(name: str) -> None:
    _check_options(engines.options_of(name))


def _check_options(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for f in dataclasses.fields(kind):
        assert f.default is not dataclasses.MISSING, f"{f.name} needs a default"
        assert f.name in (kind.__doc__ or ""), f"the docstring says nothing about {f.name}"


def test_every_engine_has_one_module() -> None:
    files = (ROOT / "sweeper" / "engines").glob("*.py")
    assert {f.stem for f in files if "\nENGINE = " in f.read_text()} == set(engines.ENGINES)


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_module_has_a_docstring_and_no_leftovers(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert text.lstrip().startswith('"""'), "a module opens with what it knows"
    assert module.stem not in ("utils", "common", "helpers", "base")
    for left in (r"\bTODO\b", r"\bFIXME\b", r"\bXXX\b", r"NotImplementedError"):
        assert not re.search(left, text), f"{left} was left behind"


def test_large_dependencies_are_imported_in_one_module() -> None:
    importers = {
        "ray": {"sweeper/engines/_ray_actors.py", "sweeper/engines/ray.py"},
        "hydra": {"sweeper/commands/overrides.py"},
        "matplotlib": {"sweeper/report/plots.py"},
        "numba": {"simulators/core/jit.py"},
    }
    for dependency, allowed in importers.items():
        found = {
            name
            for name, module in zip(NAMES, MODULES, strict=True)
            if re.search(rf"^\s*(import|from) {dependency}\b", module.read_text(), re.MULTILINE)
        }
        assert found <= allowed, f"{dependency} is imported in {sorted(found - allowed)}"


def test_configuration_ships_with_the_package() -> None:
    assert (shipped_files.conf() / "config.yaml").is_file()
    assert shipped_files.spaces()
