"""Advisories about the versions in `requirements.lock`, as pip-audit finds them, within a minute.

    python .ci/audit.py      in an environment with pip-audit

An advisory comes overnight and is no change's fault, so what fails is only what can be acted on: a
locked version for which a mended one is out, until the lock takes it or `ACCEPTED` says why not.
One that nobody has mended yet is printed. A service that does not answer says nothing about any
change either, and is printed as well. Mistakes in our own code are looked for by ruff: its rules
`S` are those of bandit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ACCEPTED: dict[str, str] = {}
"""Advisories, each with the reason why the lock stays behind the version that mends it."""
LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
WORDS = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "--timeout", "5", "-f", "json")
MOST_S = 60


def main() -> int:
    """Print what is known; return 1 where something can and should be done."""
    words = [sys.executable, "-m", "pip_audit", "-r", str(LOCK), *WORDS]
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            words, capture_output=True, text=True, timeout=MOST_S, check=False
        )
        packages = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        packages, done = [], None
    except ValueError:
        packages = []
    unknown = [p["name"] for p in packages if "skip_reason" in p]
    if len(unknown) == len(packages):
        print(f"no advisories were looked up: {_why(done, len(packages))[:200]}")
        return 0
    found = list(advisories(packages))
    for line, _ in found:
        print(line)
    print(f"{len(packages) - len(unknown)} packages looked up, {len(unknown)} not known there")
    return int(any(urgent for _, urgent in found))


def _why(done: subprocess.CompletedProcess[str] | None, packages: int) -> str:
    """Return why nothing is known of any package."""
    if done is None:
        return f"no answer within {MOST_S} s"
    last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
    return f"the index knows none of {packages} packages" if packages else last


def advisories(packages: list[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Yield each advisory in a line, and whether the lock has to take a version that mends it."""
    for package in packages:
        for one in package.get("vulns", ()):
            names = {one["id"], *one.get("aliases", ())}
            accepted = next((ACCEPTED[n] for n in names if n in ACCEPTED), "")
            mended = ", ".join(one["fix_versions"])
            what = accepted or (f"lock {mended}" if mended else "no version mends it yet")
            yield (
                f"{package['name']} {package['version']}: {one['id']}: {what}",
                bool(mended and not accepted),
            )


if __name__ == "__main__":
    sys.exit(main())
