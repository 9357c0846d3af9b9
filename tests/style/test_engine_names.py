"""Engine and model names are data: code of the simulators holds none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulators.core.folder import ENGINES, PACKAGE

LOADERS = "catalog/engine.py"
SCHEDULERS = "serving/schedulers/"
"""Modules that may name an engine: what loads its file, and what schedules as it does."""

FAMILIES = "llama", "deepseek", "qwen", "mixtral", "gpt_oss", "kimi", "glm"
NAMES = re.compile("|".join((*ENGINES.names(), "tensorrt_llm", *FAMILIES)), re.IGNORECASE)


def named(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield lines and texts of identifiers and strings, docstrings apart, that hold a name."""
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            text = str(node.value)
        else:
            fields = ("id", "attr", "name", "arg", "asname", "module")
            words = (getattr(node, field, None) for field in fields)
            text = " ".join(word for word in words if isinstance(word, str))
        if NAMES.search(text):
            yield getattr(node, "lineno", 0), text


def test_simulator_code_names_no_engine_or_model() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    found = [
        f"{file.relative_to(PACKAGE)}:{line}: {text}"
        for file in files
        if not (place := file.relative_to(PACKAGE).as_posix()).startswith(SCHEDULERS)
        and place != LOADERS
        for line, text in named(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code", ["x = 'vllm'", "sglang_s = 1.0", "f(trtllm=2)", "f'of {x} vLLM'", "import vllm"]
)
def test_engine_names_are_found_in_code_and_strings(code: str) -> None:
    assert list(named(ast.parse(code)))
    assert not list(named(ast.parse('"""As vLLM does."""\nx = 1\n"""And SGLang."""')))


def test_every_engine_has_one_file() -> None:
    shipped = {file.stem for file in ENGINES.shipped.glob("*.toml")}
    assert shipped == {"sglang", "trtllm", "vllm"}
    assert not list(Path(ENGINES.shipped).glob("*.py"))
