"""CPU-milliseconds of a filter in the explorer page over a million designs, measured in the page.

Needs Debian's chromium and chromium-driver, and selenium.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import statistics
import tempfile
import threading
from pathlib import Path
from typing import Any

from simulators.core.checks import Check, print_checks
from sweeper.__main__ import main as sweeper
from sweeper.commands.explorer import ServedSweeps, server

LIMIT_MS = 200.0
"""Time between a filter and the new pictures, tables and front."""
SPACE = """\
simulator: benchmarks.points.roofline
axes:
  device: [{devices}]
  m: [64, 128, 192, 256, 320, 384, 448, 512, 576, 640]
  n: [64, 128, 192, 256, 320, 384, 448, 512, 576, 640]
  k: [64, 128, 192, 256, 320, 384, 448, 512, 576, 640]
  batch: [8, 16, 24, 32, 40, 48, 56, 64, 72, 80]
  bandwidth: 1e12..5e12 log 5
  devices: [1, 8]
objectives: {{latency_s: min, cost: min, mfu: max}}
"""
_FILTERS = {
    "a range": "setFilter('mfu', {low: 0.05 + 0.03 * i, high: null})",
    "a second range": "setFilter('latency_s', {low: null, high: 1e-6 * (i + 1)})",
    "values of an axis": "setFilter('device', {values: ['device_1', `device_${2 + i}`]})",
    "no filter again": "i % 2 ? setFilter('mfu', null) : setFilter('mfu', {low: 0.1, high: null})",
}
_CLEAR = "for (const name of [...state.filters.keys()]) setFilter(name, null);"
_RUNS = 6


def chromium() -> Any:
    """Return a browser without a window and with an empty profile; None if none is installed."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        return None
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    quiet = ("background-networking", "component-update", "sync", "quic", "gpu")
    flags = ["--headless=new", "--no-sandbox", "--no-first-run", "--window-size=1366,768"]
    for flag in [*flags, *(f"--disable-{name}" for name in quiet)]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(driver))


def write_million(folder: Path) -> None:
    """Sweep a million designs of a fast simulator in the folder; the folder becomes the current."""
    os.chdir(folder)
    (folder / "spaces").mkdir()
    devices = ", ".join(f"device_{i}" for i in range(10))
    (folder / "spaces" / "million.yaml").write_text(SPACE.format(devices=devices))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert sweeper(["+space=million", "plot=false", "engine=inline"]) == 0


def main() -> None:
    """Print the CPU time of each kind of filter, and the wall time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    browser = chromium()
    if browser is None:
        raise SystemExit("needs Debian's chromium and chromium-driver")
    with tempfile.TemporaryDirectory() as folder:
        write_million(Path(folder))
        served = ServedSweeps("outputs", "million")
        with server(served, 0) as listening:
            threading.Thread(target=listening.serve_forever, daemon=True).start()
            checks = _measured(browser, f"http://127.0.0.1:{listening.server_port}/{served.token}/")
            listening.shutdown()
    browser.quit()
    print_checks(checks, as_json=chosen.json)


def _measured(browser: Any, address: str) -> list[Check]:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(address)
    ready = "return document.documentElement.dataset.ready === 'yes'"
    WebDriverWait(browser, 120).until(lambda b: b.execute_script(ready))
    rows = int(browser.execute_script("return state.first.rows"))
    took = "return Number(document.documentElement.dataset.took)"
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    checks = []
    for name, script in _FILTERS.items():
        spent, times = [], []
        for i in range(_RUNS):
            before = _script_ms(browser)
            times.append(browser.execute_script(f"const i = arguments[0]; {script}; {took}", i))
            spent.append(_script_ms(browser) - before)
        used = statistics.median(spent)
        note = f"{statistics.median(times):.0f} ms of wall time in the page"
        checks.append(Check(name, used, "CPU-ms", LIMIT_MS, used <= LIMIT_MS, rows, note))
    browser.execute_script(_CLEAR)
    return checks


def _script_ms(browser: Any) -> float:
    """Return the CPU-milliseconds that the main thread of the page has taken."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1e3 * float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


if __name__ == "__main__":
    main()
