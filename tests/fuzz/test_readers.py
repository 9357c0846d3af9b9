"""Every file reader returns a result or a short error for arbitrary file contents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.faults.machines import ENVIRONMENT
from tests.fuzz.worker import wrong

QUICK, ALL, BATCH = 500, 10_000, 1_000


@pytest.mark.timeout(300)
def test_five_hundred_mutated_files_give_rows_or_messages(workplace: Path) -> None:
    assert [said for number in range(QUICK) if (said := wrong(number))] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(QUICK, ALL, BATCH))
def test_ten_thousand_mutated_files_give_rows_or_messages(tmp_path: Path, first: int) -> None:
    """Run cases in a process with a memory limit; restart the process after a crash."""
    said, number, end = [], first, min(first + BATCH, ALL)
    while number < end:
        words = [str(number), str(end - number), str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.worker", *words],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
        )
        said += done.stdout.splitlines()
        reached = int((tmp_path / "now").read_text())
        if done.returncode:
            said.append(f"case {reached} ended its process: {done.returncode} {done.stderr[-300:]}")
        number = reached + 1
    assert said == []
