"""Shipped edge calibrations equal the output of the fit."""

from __future__ import annotations

import pytest

from lab.fits.driver import main
from simulators.core.calibration import reference_folder


@pytest.mark.slow
@pytest.mark.skipif(reference_folder() is None, reason="no measured tables")
def test_shipped_edge_calibrations_are_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    main(["edge", "nb201", "ofa", "--check"])
    assert capsys.readouterr().out.count("reproduced") == 2
