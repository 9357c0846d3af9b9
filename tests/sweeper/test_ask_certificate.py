"""Certificates of answers: cheaper designs are counted, and excluded ones do not meet the SLO."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from simulators.core.errors import UserError
from sweeper.commands.ask.probability import SloProbability
from sweeper.commands.ask.proof import (
    certificate_of,
    check_screening,
    question_again,
    screening_of,
)
from sweeper.commands.ask.question import answer_to, question_of_words
from sweeper.query.screening import tail_probabilities
from sweeper.report.certificate import checks, rows_at

WORDS = [
    *("--model", "llama3_1_8b", "--gpu", "h100_sxm,l40s", "--gpus", "4", "--qps", "12"),
    *("--requests", "200", "--run-with", "inline"),
]


def test_bound_of_the_tail_exceeds_the_share_of_new_errors() -> None:
    random = np.random.default_rng(0)
    ends = np.array([-0.5, -1.0, -1.5])
    for draw in (random.normal, random.laplace):
        bounds = tail_probabilities(draw(0.0, 0.5, 300), ends)
        true = (draw(0.0, 0.5, 200_000)[:, np.newaxis] < ends).mean(axis=0)
        assert (bounds >= 0.8 * true).all()
        assert (np.diff(bounds) < 0.0).all()


@pytest.mark.slow
def test_no_excluded_design_meets_the_slo(tmp_path: Path) -> None:
    answer = answer_to([*WORDS, "--outputs", str(tmp_path)])
    certificate = certificate_of(answer, WORDS)
    assert certificate.screening["failure_probability"] <= 0.05
    screening = screening_of(answer.question, answer.last.space)
    cheaper = screening.index[screening.cost < certificate.screening["cost"] * (1.0 - 1e-9)]
    assert len(cheaper) == certificate.screening["cheaper"]
    slo = SloProbability(answer.question, answer.chosen.confidence, answer.chosen.band)
    rows = rows_at(answer.last.space, np.sort(cheaper))
    rows = rows.filter(rows["status"] == "ok")
    assert (slo.misses(rows) > 1.0).all()

    question = question_again(certificate, question_of_words)
    assert len(list(checks(certificate, 5, 1))) > 3
    assert len(list(check_screening(certificate, question))) == 2
    for name, value, said in (
        ("failure_probability", 1e-9, "P\\(a missed design"),
        ("cheaper", 3, "designs are cheaper"),
        ("cost", 0.01, "the answer costs"),
    ):
        forged = dataclasses.replace(certificate, screening={**certificate.screening, name: value})
        with pytest.raises(UserError, match=said):
            list(check_screening(forged, question))
