"""Write the generated pages of the documentation; `mkdocs build` calls it, and so can you.

    python -m docs.build_pages    reference, calibration files, accuracy, errata, coverage

None of these pages is committed. The coverage page answers all scenarios, which takes minutes; an
existing page is kept, so delete `docs/coverage.md` to compute it again.
"""

from __future__ import annotations

from typing import Any

from docs import calibrations, evidence, reference


def on_pre_build(**_config: Any) -> None:
    """Write the pages before mkdocs collects its files (an mkdocs hook)."""
    for file, text in (*reference.pages(), *evidence.accuracy_pages()):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (evidence.FOLDER / "calibrations.md").write_text(calibrations.page(), encoding="utf-8")
    (evidence.FOLDER / "accuracy.md").write_text(evidence.accuracy(), encoding="utf-8")
    (evidence.FOLDER / "errata.md").write_text(evidence.errata(), encoding="utf-8")
    coverage = evidence.FOLDER / "coverage.md"
    if not coverage.exists():
        coverage.write_text(evidence.coverage(evidence.answers()), encoding="utf-8")


if __name__ == "__main__":
    on_pre_build()
