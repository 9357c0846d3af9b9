"""The laboratory's command line: accuracy claims, fits, and scores of other tools' predictions."""

from __future__ import annotations

import importlib
import os
import sys

from simulators.core.errors import Infeasible, UserError

COMMANDS = {
    "validate": ("lab.validate", "accuracy of the simulators against measured rows"),
    "fit": ("lab.fits.driver", "fit a calibration to measured rows"),
    "predictions": ("lab.predictions.score", "errors of another tool's predictions"),
    "benchmark": ("lab.benchmark.command", "a dated benchmark of predictors, open to any entry"),
    "replay-engine": ("lab.parity.replay_engine", "an engine release's own scheduler against ours"),
    "scenarios": ("lab.scenarios", "answers to the scenarios of practitioners"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        lines = (f"  sweeper-lab {name:12} {about}" for name, (_, about) in COMMANDS.items())
        print("\n".join(["usage: sweeper-lab COMMAND ...", *lines]))
        return 0 if words in ([], ["-h"], ["--help"]) else 2
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # matrices are small; numpy reads it once
    module = importlib.import_module(COMMANDS[words[0]][0])
    try:
        return int(module.main(words[1:]) or 0)
    except (UserError, Infeasible) as error:
        print(f"sweeper-lab: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
