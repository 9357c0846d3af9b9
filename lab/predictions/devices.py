"""Forecast of devices that were not measured when the forecast was made, by data sheet alone.

`python -m lab.predictions.devices` writes `devices.csv`: output tokens per second and device of
Llama-2-70B as in MLPerf Inference, Offline, with the 90 % interval and the date. The table stays as
it was on its date.
"""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Iterator
from pathlib import Path

from lab.fits.accelerators.devices import predicted
from simulators.catalog.gpu import load_gpu
from simulators.codesign.device import calibrated

TABLE = Path(__file__).with_suffix(".csv")
DEVICES = ("vr200", "mi455x", "tpu_v7x", "b300_sxm")
COLUMNS = ("device", "date", "tokens_per_s", "lo", "hi", "tokens_per_s_per_w", "lo_w", "hi_w")


def forecasts(date: str) -> Iterator[tuple[str, ...]]:
    """Yield the row of each device: rates with intervals, per device and per watt of its limit."""
    factors = calibrated()
    for name in DEVICES:
        rate, watts = predicted(name, factors), load_gpu(name).tdp_w
        values = (rate, *factors.interval(rate))
        per_watt = (f"{value / watts:.3g}" for value in values)
        yield (name, date, *(f"{value:.4g}" for value in values), *per_watt)


def main() -> None:
    """Write the table with the current date."""
    with TABLE.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(forecasts(dt.datetime.now(dt.UTC).date().isoformat()))


if __name__ == "__main__":
    main()
