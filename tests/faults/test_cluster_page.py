"""The commands that the page on clusters shows start a cluster of two raylets and a sweep."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.faults.machines import ENVIRONMENT, kin, rows, until

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "how-to" / "run-on-a-cluster.md"
SPACE = "simulator: tests.toys.counting\naxes: {n: 0..99, log: log.txt, pause_s: 0.02}\n"
CPUS = 2  # of the cluster, one per raylet; one raylet alone would refuse so many actors
DISABLED = "export RAY_AUTH_MODE=disabled"


def blocks() -> list[str]:
    """Return the commands of the first machine, of another machine, and of the sweep."""
    section = PAGE.read_text().split("## Several machines\n")[1].split("\n## ")[0]
    found = re.findall(r"(?:^    .+\n)+", section, flags=re.MULTILINE)
    assert DISABLED in section
    return [textwrap.dedent(block) for block in found]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user who has run a local sweep, which wrote a token."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0" * 64)
    usual = {name: value for name, value in ENVIRONMENT.items() if "RAY_AUTH" not in name}
    (tmp_path / "bin").mkdir()
    for name, words in (("python", ""), ("ray", " -m ray.scripts.scripts")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        program.chmod(0o755)
    programs = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    mark = str(tmp_path / "mark")
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # else `auto` could be another head
        yield {
            **usual,
            "HOME": str(tmp_path),
            "PATH": programs,
            "MARK": mark,
            "RAY_TMPDIR": folder,
            "RAY_OVERRIDE_RESOURCES": '{"CPU": 1}',
        }
        for process in kin(mark):
            process.kill()
            process.wait()


@pytest.mark.parametrize("tokens", [True, False])
def test_commands_of_the_page_run_a_sweep_on_two_raylets(
    tmp_path: Path, shell: dict[str, str], tokens: bool
) -> None:
    from ray._private.services import get_node_ip_address

    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "toy.yaml").write_text(SPACE)
    first, other, sweep = (
        block.replace("6379", port).replace("HEAD", get_node_ip_address()) for block in blocks()
    )
    if not tokens:
        first, other = (
            re.sub(r"(export RAY_AUTH\S+=.*\n)+", f"{DISABLED}\n", block)
            for block in (first, other)
        )
    sweep = sweep.replace("llama70b_h100", f"toy plot=false engine.actors={CPUS}")
    sweep = sweep.replace("/shared/sweeps", str(tmp_path / "outputs"))
    log, ready = tmp_path / "log.out", tmp_path / "token.txt"
    with (
        log.open("w") as stream,
        subprocess.Popen(
            ["bash", "-e"],
            cwd=tmp_path,
            env=shell,
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
        ) as machine,
    ):
        assert machine.stdin
        machine.stdin.write(
            f"{first}echo $RAY_AUTH_TOKEN > token.new; mv token.new {ready}\n".encode()
        )
        machine.stdin.flush()
        until(ready.exists, 90.0, lambda: machine.poll() is None, log.read_text)
        joined = subprocess.run(
            ["bash", "-e"],
            input=other.replace("=TOKEN", f"={ready.read_text().strip()}"),
            cwd=tmp_path,
            env=shell,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            text=True,
            timeout=90,
            check=False,
        )
        assert joined.returncode == 0, log.read_text()
        machine.communicate(sweep.encode(), timeout=120)
    assert machine.returncode == 0, log.read_text()
    assert "InvalidAuthToken" not in log.read_text()
    assert rows(tmp_path)["n"].to_list() == list(range(100))
