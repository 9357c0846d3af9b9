"""Code runs only from folders that the user trusts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from simulators.core.folder import trust_file
from sweeper.__main__ import main
from tests.conftest import ROOT

EVIL = "from pathlib import Path\nPath('owned').touch()\n"
OURS = "# ours?\nsimulator: tests.toys.quadratic\naxes: {x: 1..2}\nobjectives: {cost_usd: min}\n"
SERVED = "# served\nsimulator: serving\naxes: {model: gpt2, gpu: l4, qps: 1, requests: 5}\n"


@pytest.fixture
def stranger(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of somebody else's, in which the user stands, with code where it is looked for."""
    monkeypatch.delenv("SWEEPER_TRUST")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(workplace / "home"))
    here = workplace / "theirs"
    shadows = ("samplers/grid", "schedulers/vllm_v1", "routers/round_robin")
    for name in ("simulators/planted", *shadows):
        file = here / "catalog" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(EVIL)
    for name in ("planted_module.py", "planted_package/inside.py", "rich.py", "hydra.py"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(EVIL)
    (here / "spaces").mkdir()
    (here / "spaces" / "toy.yaml").write_text(OURS)
    (here / "spaces" / "served.yaml").write_text(SERVED)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))  # as in a notebook
    return here


@pytest.mark.parametrize(
    "words",
    [
        ["+space=toy"],
        ["+space=toy", "sampler=grid"],
        ["+space=toy", "sampler=planted_module"],
        ["+space=toy", "sampler=planted_package.inside"],
        ["+space=toy", "space.simulator=planted"],
        ["+space=toy", "space.simulator=./catalog/simulators/planted.py"],
        ["+space=toy", "space.simulator=planted_module.X"],
        ["+space=toy", "space.simulator=planted_package.inside"],
        ["+space=served"],
        ["+space=served", "space.axes.scheduler=./catalog/schedulers/vllm_v1.py"],
        ["+space=served", "space.axes.scheduler=planted_package.inside"],
        ["+space=served", "space.axes.scheduler=sarathi", "space.axes.replicas=2"],
        ["plan", "+space=toy", "space.simulator=planted"],
    ],
    ids=" ".join,
)
def test_sweep_runs_no_code_from_untrusted_folders(
    stranger: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code, said = main([*words, "engine=inline", "plot=false"]), capsys.readouterr()
    assert not (stranger / "owned").exists()
    assert code in (0, 2, 3)
    if code == 2 and "sampler=planted_module" not in words:
        assert f"sweeper trust {stranger}" in said.err


@pytest.mark.parametrize("words", [["completion", "bash"], ["schema"], ["list"]])
def test_commands_run_no_code_from_untrusted_folders(
    stranger: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(words) == 0
    capsys.readouterr()
    assert not (stranger / "owned").exists()


@pytest.mark.parametrize("words", [["pareto", "toy"], ["verify", "toy"], ["show", "toy", "knee"]])
def test_foreign_results_cannot_name_code_to_run(
    stranger: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    shutil.rmtree("catalog/samplers")
    assert main(["+space=toy", "engine=inline", "plot=false"]) == 0
    for file in Path("outputs/toy/runs").glob("*/*.json"):
        file.write_text(file.read_text().replace("tests.toys.quadratic", "planted"))
    assert main(words) == 2
    assert "sweeper trust" in capsys.readouterr().err
    assert not (stranger / "owned").exists()


@pytest.mark.slow
def test_installed_packages_come_before_the_current_folder(stranger: Path) -> None:
    for words in (["-m", "sweeper"], [str(ROOT / "sweeper" / "__main__.py")]):
        done = subprocess.run(
            [sys.executable, *words, "list", "samplers"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert "grid" in done.stdout, done.stderr
    assert not (stranger / "owned").exists()


def test_folder_is_trusted_through_the_user_trust_file(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "+space=toy", "space.simulator=planted"]
    shutil.rmtree("catalog/samplers")
    file = stranger / "catalog" / "simulators" / "planted.py"
    file.write_text("from tests.toys.quadratic import SIMULATOR as SIMULATOR")
    assert main(words) == 2
    assert main(["trust", "."]) == 0
    assert main(words) == 0
    trust_file().chmod(0o666)  # anybody's pen
    file.write_text(f"{file.read_text()}\n")
    assert main(words) == 2
    assert main(["trust", "nowhere"]) == 2
    capsys.readouterr()


def test_symlink_out_of_a_trusted_folder_is_refused(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = stranger.parent / "mine"
    (home / "catalog" / "simulators").mkdir(parents=True)
    (home / "catalog" / "simulators" / "linked.py").symlink_to(
        stranger / "catalog" / "simulators" / "planted.py"
    )
    monkeypatch.chdir(home)
    monkeypatch.setenv("SWEEPER_TRUST", f"{home}{os.pathsep}")  # an empty word is no folder
    with pytest.raises(UserError, match="not trusted"):
        load_simulator("linked")
    assert not (home / "owned").exists()
