"""What leaves the house is quoted for where it goes: shells, YAML, pages, terminals."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deploy.quoting import comment, label
from deploy.serving import deployment
from simulators.core import jit
from simulators.core.folder import MODELS
from simulators.serving.point import ServingPoint
from sweeper.__main__ import main
from sweeper.report.browser.page import _json
from sweeper.terminal import printable

ODD = "llama\ntouch owned\r$(touch owned) `touch owned` \u2028'\";"
LLAMA = ServingPoint(model="llama3_1_70b", gpu="h100_sxm", tp=4, scheduler="vllm_v1", max_batch=256)
SPACE = """\
# A <script>alert(1)</script> question
simulator: tests.toys.quadratic
axes: {x: 1..3, label: ["<!--<script>", "{{data}}"]}
derived: {"{{js}}": "x * 2"}
"""


@pytest.fixture
def design(workplace: Path) -> ServingPoint:
    """A design whose model is a file of an odd name."""
    folder = workplace / "a\ntouch owned\n#"
    folder.mkdir()
    sheet = folder / "model.toml"
    sheet.write_text(MODELS.find("llama3_1_70b").read_text())
    return replace(LLAMA, model=str(sheet), replicas=2)


def test_no_line_of_a_script_is_anything_but_the_command(design: ServingPoint) -> None:
    text = deployment(design, "", "a name\nrm -rf /")
    lines = text.replace("\\\n", " ").splitlines()
    commands = [line for line in lines if not line.startswith("#")]
    assert len(commands) == 1
    assert shlex.split(commands[0])[:2] == ["vllm", "serve"]


@pytest.mark.parametrize("target", ["kubernetes", "dynamo"])
def test_manifests_are_yaml_that_says_what_was_meant(design: ServingPoint, target: str) -> None:
    for document in yaml.safe_load_all(deployment(design, target, ODD)):
        assert re.fullmatch(r"[a-z0-9-]+", document["metadata"]["name"])


def test_comments_stay_on_their_line() -> None:
    assert len(comment(ODD).splitlines()) == 1
    assert label("....") == "model"


def test_a_page_runs_its_own_script_alone(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "spaces").mkdir()
    (workplace / "spaces" / "toy.yaml").write_text(SPACE)
    assert main(["+space=toy", "plot=false", "engine=inline"]) == 0
    assert main(["report", "toy", "--file", "page.html"]) == 0
    text = Path("page.html").read_text()
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, flags=re.DOTALL)
    assert [attributes for attributes, _ in scripts if "type" not in attributes] == [""]
    digest = base64.b64encode(hashlib.sha256(scripts[-1][1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert json.loads(scripts[0][1])["name"] == "toy"
    assert "<!--<script>" not in text
    assert text.count('id="meta"') == text.count('id="data"') == 1


def test_json_in_a_page_ends_no_element() -> None:
    text = _json({"a": "</script><!--<script>"})
    assert "<" not in text
    assert json.loads(text) == {"a": "</script><!--<script>"}


def test_a_terminal_is_told_nothing_to_obey() -> None:
    assert printable("\x1b]0;owned\x07 ü\n") == "?]0;owned? ü\n"


def test_kernels_are_kept_where_nobody_else_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(jit.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    ours = jit.cache_folder()
    assert ours.is_relative_to(tmp_path / "home")
    ours.parent.chmod(0o777)
    elsewhere = jit.cache_folder()
    assert elsewhere.is_relative_to(tmp_path / "tmp")
    elsewhere.chmod(0o777)
    assert not jit.cache_folder().is_relative_to(tmp_path / "home")
    assert jit.cache_folder() != elsewhere
