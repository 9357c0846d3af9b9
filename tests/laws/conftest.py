"""The number of laws and points that were checked, at the end of a run."""

from __future__ import annotations

from typing import Any

from tests.laws.laws import COUNTS


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for name, count in sorted(COUNTS.items()):
        terminalreporter.write_line(f"{name}: {count}")
