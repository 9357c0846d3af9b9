"""Input is validated by type, and errors name the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError
from simulators.core.folder import GPUS
from sweeper.configuration import Configuration
from sweeper.space.design_space import DesignSpace
from sweeper.space.space_file import read_space
from sweeper.store.keys import Definition, define
from sweeper.typed import MistypedError, from_json


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("simulator: x\naxes: 12", "line 2: `axes` is a mapping from names to values, not 12"),
        ("zip: [[1]]\naxes: {}", "line 1: `zip` is a list of lists"),
        ("# why?\n\nunion: 3", "line 3: `union` is a list of small grids"),
        ("objectives: {x: up}", "line 1: `objectives` is a mapping from metrics to min or max"),
        ("axes: {3: 1}", "line 1: `axes` is a mapping from names"),
        ("simulator: x\naxes: {null: 1}", "line 2: a key has no name"),
        ("where: [1]", "line 1: `where` is one SQL condition"),
    ],
)
def test_space_file_error_names_line_and_rule(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        read_space(file)
    assert str(error.value).startswith(f"{file}, {said}")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"plot": 1}, "plot=1: write true or false"),
        ({"failures": {"max": 1.5}}, "failures.max=1.5: write a whole number or null"),
        ({"failures": 3}, "failures=3: write a mapping"),
        ({"engine": {}}, "engine={}: write something under `name`"),
        ({"space": None}, "space=None: write a mapping"),
        ({"outputs": ["x"]}, r"outputs=\['x'\]: write text"),
        ({"sampller": {}}, "did you mean 'sampler'"),
    ],
)
def test_configuration_error_names_the_key(changed: dict[str, Any], said: str) -> None:
    good = Configuration("toy", {"simulator": "kernels"}).to_dict()
    with pytest.raises(UserError, match=said):
        Configuration.from_dict(good | changed)


def test_definition_is_read_back_unchanged() -> None:
    stored = define(DesignSpace.of("kernels", gpu=["l4", "a40"], op="gemm", m="1..4"))
    assert Definition.from_json(stored.to_json()) == stored
    for key, value in (("factors", [{"m": "word"}]), ("version", True), ("contents", {"m": 1})):
        damaged = json.dumps(json.loads(stored.to_json()) | {key: value})
        with pytest.raises(MistypedError, match=key):
            Definition.from_json(damaged)


def test_deep_nesting_gives_a_message() -> None:
    with pytest.raises(MistypedError, match="too deep"):
        from_json("[" * 100_000, list[Any])


def test_data_sheet_error_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    sheet = GPUS.find("l4").read_text()
    file.write_text(sheet.replace("sm_count =", "sm_kount ="))
    line = next(i for i, text in enumerate(sheet.splitlines(), 1) if text.startswith("sm_count"))
    with pytest.raises(UserError, match=f"mine.toml, line {line}: 'sm_kount' is not a field"):
        load_gpu(str(file))
