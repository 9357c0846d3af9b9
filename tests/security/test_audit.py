"""The audit fails only for advisories with a fix."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from types import ModuleType

import pytest

from tests.conftest import ROOT

KNOWN = {"name": "known", "version": "1", "vulns": []}
LOST = {"name": "lost", "skip_reason": "not found"}
MENDED = {"id": "A-1", "aliases": ["CVE-1"], "fix_versions": ["2"]}
OPEN = {"id": "A-2", "aliases": [], "fix_versions": []}


@pytest.fixture
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([KNOWN, LOST], 0, "1 packages looked up, 1 not known there"),
        ([LOST], 0, "no advisories were looked up: the index knows none of 1 packages"),
        (None, 0, "no advisories were looked up: cannot connect"),
        ([{**KNOWN, "vulns": [MENDED]}], 1, "known 1: A-1: lock 2"),
        ([{**KNOWN, "vulns": [OPEN]}], 0, "known 1: A-2: no version mends it yet"),
    ],
)
def test_fixable_advisories_fail_the_audit(
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    packages: list[object] | None,
    code: int,
    said: str,
) -> None:
    out = "" if packages is None else json.dumps({"dependencies": packages})
    done = subprocess.CompletedProcess([], 1, out, "Traceback\ncannot connect\n")
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: done)
    assert audit.main() == code
    assert said in capsys.readouterr().out
    monkeypatch.setattr(audit, "ACCEPTED", {"CVE-1": "not reached from here"})
    assert audit.main() == 0


def test_slow_advisory_service_is_skipped(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("pip_audit", 60)

    monkeypatch.setattr(audit.subprocess, "run", late)
    assert audit.main() == 0
    assert "no advisories were looked up" in capsys.readouterr().out
