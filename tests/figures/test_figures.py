"""Figures of shipped spaces equal the accepted figures; changes are printed."""

from __future__ import annotations

import pytest

from sweeper.space import shipped_files
from tests.figures import TOLERANCE, accepted, computed


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_files.spaces())
def test_figures_of_a_space_match_the_accepted_figures(name: str) -> None:
    figures, moved = [figure for figure in accepted() if figure.space == name], []
    assert figures, f"no figure of {name}: python -m tests.figures --write"
    today = computed(name, sorted({figure.point for figure in figures}))
    for figure in figures:
        now = today.get((figure.point, figure.metric))
        if now is None:
            moved.append(f"{figure.name}: {figure.value:.6g} -> no value")
        elif abs(now.value - figure.value) > TOLERANCE * abs(figure.value):
            change = now.value / figure.value - 1.0 if figure.value else now.value
            moved.append(f"{figure.name}: {figure.value:.6g} -> {now.value:.6g} ({change:+.2%})")
    assert not moved, "\n".join([*moved, "to accept them: python -m tests.figures --write"])
