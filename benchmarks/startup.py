"""Start-up of commands: CPU-seconds of the help, and of importing the code.

Each figure is the median of five new processes and includes the start of Python. The code of a
command includes no simulator, since the space decides which, nor Hydra, which a sweep needs.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys

from benchmarks.timing import RUNS
from simulators.core.checks import Check, print_checks
from sweeper.commands import COMMANDS

HELP_S, START_S = 0.2, 0.5
_COLLECTS = "import gc, sweeper.__main__ as main; gc.set_threshold(*main.COLLECTED)"


def main() -> None:
    """Print the CPU-seconds of each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    helps = (f"{name} --help".split() for name in ("", *COMMANDS))
    checks = [_timed(" ".join(words), ["-m", "sweeper", *words], HELP_S) for words in helps]
    modules = dict.fromkeys(known["run"].rpartition(".")[0] for known in COMMANDS.values())
    for module in modules:
        names = [n for n, known in COMMANDS.items() if known["run"].startswith(f"{module}.")]
        words = ["-c", f"{_COLLECTS}; import sweeper.commands.{module}"]
        checks.append(_timed(f"start of {', '.join(names)}", words, START_S))
    print_checks(checks, as_json=chosen.json)


def _timed(name: str, words: list[str], limit: float) -> Check:
    spent = statistics.median(_cpu_s(words) for _ in range(RUNS))
    return Check(name, spent, "CPU-s", limit, spent <= limit, RUNS)


def _cpu_s(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
