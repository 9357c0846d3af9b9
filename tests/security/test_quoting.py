"""Output is quoted for shells, YAML, web pages and terminals."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import yaml

from deploy.deployments import training
from deploy.deployments.serving import deployment
from deploy.templates import comment, label, written
from simulators.core.folder import GPUS, MODELS
from simulators.serving.point import ServingPoint
from simulators.training.point import TrainingPoint
from sweeper.__main__ import main
from sweeper.report.browser.page import safe_json
from sweeper.report.tables import as_csv, as_json, as_markdown
from sweeper.text import printable, quoting
from tests.conftest import ROOT

ODD = "llama\ntouch owned\r$(touch owned) `touch owned` \u2028'\";"
LLAMA = ServingPoint(model="llama3_1_70b", gpu="h100_sxm", tp=4, scheduler="vllm_v1", max_batch=256)
SPACE = """\
# A <script>alert(1)</script> question
simulator: tests.toys.quadratic
axes: {x: 1..3, label: ["<!--<script>", "{{data}}", '"><img src=x>']}
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


def test_deployment_script_contains_only_the_command(design: ServingPoint) -> None:
    text = deployment(design, "", "a name\nrm -rf /")
    lines = text.replace("\\\n", " ").splitlines()
    commands = [line for line in lines if not line.startswith("#")]
    assert len(commands) == 1
    assert shlex.split(commands[0])[:2] == ["vllm", "serve"]


@pytest.mark.parametrize("target", ["kubernetes", "dynamo"])
def test_manifest_values_survive_yaml_quoting(design: ServingPoint, target: str) -> None:
    for document in yaml.safe_load_all(deployment(design, target, ODD)):
        assert re.fullmatch(r"[a-z0-9-]+", document["metadata"]["name"])


@pytest.mark.parametrize("target", ["", "kubernetes", "dynamo"])
def test_unusual_gpu_name_appears_only_in_comments(workplace: Path, target: str) -> None:
    sheet = workplace / "h\ntouch owned\nowned: true.toml"
    sheet.write_text(GPUS.find("h100_sxm").read_text())
    text = deployment(replace(LLAMA, gpu=str(sheet)), target)
    assert not re.search(r"^(touch|owned)", text, re.M)
    if target:
        assert all("owned" not in document for document in yaml.safe_load_all(text))


def test_training_script_is_one_command(workplace: Path) -> None:
    (workplace / "a\ntouch owned\n").mkdir()
    sheet = workplace / "a\ntouch owned\n" / "$(touch owned).toml"
    sheet.write_text(MODELS.find("gpt2").read_text())
    design = TrainingPoint(model=str(sheet), gpu="h100_sxm", dp=8, batch=64)
    text = training.script(design, "a name\nrm -rf /")
    commands = [x for x in text.replace("\\\n", " ").splitlines() if not x.startswith("#")]
    assert len(commands) == 1
    assert shlex.split(commands[0])[:4:3] == ["exec", "torchrun"]


def test_heredoc_files_cannot_be_terminated_early(tmp_path: Path) -> None:
    text = "a: 1\nYAML\ntouch owned\nYAML_\n$(touch owned)\n"
    subprocess.run(["sh", "-c", written("a b.yaml", text)], cwd=tmp_path, check=True)
    assert [file.name for file in tmp_path.iterdir()] == ["a b.yaml"]
    assert (tmp_path / "a b.yaml").read_text() == text


def test_comments_stay_on_one_line() -> None:
    assert len(comment(ODD).splitlines()) == 1
    assert label("....") == "model"


def test_completion_offers_no_shell_metacharacters(workplace: Path) -> None:
    (workplace / "spaces").mkdir()
    for name in ("$(touch owned)", "`touch owned`", "a' ; touch owned; '", 'b"; touch owned; "'):
        (workplace / "spaces" / f"{name}.yaml").write_text(SPACE)
    asked = {"COMP_LINE": "sweeper show ", "COMP_POINT": "13", "_ARGCOMPLETE": "1"}
    command = f"{sys.executable} -m sweeper 8>words 9>/dev/null"
    environment = {**os.environ, **asked, "PYTHONPATH": str(ROOT)}
    subprocess.run(["bash", "-c", command], env=environment, check=True)
    words = Path("words").read_text().split("\013")
    assert "quickstart" in words
    assert not any("touch" in word for word in words)
    assert not Path("owned").exists()


def test_tables_contain_no_markup_or_formulas() -> None:
    texts = ["=1+1", "a|b\n| c |", "<img src=x>", "![x](http://x)", "`x`", "-1", "\x1b[2J"]
    table = pl.DataFrame({"=name": texts, "n": [-1.0] * len(texts)})
    lines = as_markdown(table).splitlines()
    assert {line.count("|") for line in lines} == {3}
    assert not re.search(r"[<`\[\x1b]", "".join(lines))
    back = pl.read_csv(as_csv(table).encode())
    assert back.columns == ["'=name", "n"]
    assert not back["'=name"].str.contains(r"^[=+\-@]").any()
    assert back["'=name"].to_list()[1] == texts[1]
    assert json.loads(as_json(table))[1]["=name"] == texts[1]


def test_report_page_runs_only_the_bundled_script(
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
    assert "<img" not in text
    assert "base-uri 'none'" in text
    assert text.count('id="meta"') == text.count('id="data"') == 1


def test_json_in_a_page_cannot_close_the_script_element() -> None:
    text = safe_json({"a": "</script><!--<script>"})
    assert "<" not in text
    assert json.loads(text) == {"a": "</script><!--<script>"}


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_terminal_output_has_no_escape_sequences() -> None:
    assert printable("\x1b]0;owned\x07 ü\n") == "?]0;owned? ü\n"
    stream = Screen()
    print("\x1b[1mbold\x1b[0m \x1b[2Jgone\r\u202eback", file=quoting(stream))
    assert stream.getvalue() == "\x1b[1mbold\x1b[0m ?[2Jgone??back\n"
    assert quoting(plain := io.StringIO()) is plain


@pytest.mark.slow
def test_every_terminal_writer_escapes_control_characters(workplace: Path) -> None:
    """A sheet is shown as it stands; what is piped is not touched."""
    (workplace / "catalog" / "gpus").mkdir(parents=True)
    sheet = workplace / "catalog" / "gpus" / "odd.toml"
    sheet.write_bytes(GPUS.find("l4").read_bytes() + b"# \x1b]0;owned\x07\n")
    words = [sys.executable, "-m", "sweeper", "show", "odd"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ours, theirs = pty.openpty()
    subprocess.run(words, stdout=theirs, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError), os.fdopen(ours, "rb") as shown:
        for line in shown:
            said += line
    assert b"# ?]0;owned?" in said
    assert b"\x1b]" not in said
    assert b"\x1b]" in subprocess.run(words, capture_output=True, env=environment).stdout
