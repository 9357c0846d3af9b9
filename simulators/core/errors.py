"""Errors: a mistake of the user (`UserError`), or a design that cannot exist (`Infeasible`).

Every other exception is a defect and crashes with its traceback.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

SENTENCES = Path(__file__).with_name("not_modelled.toml")
SPELLINGS = Path(__file__).with_name("spellings.toml")

_LISTED = 16
"""Number of names that a message lists; of more names it lists the nearest."""


class UserError(Exception):
    """A mistake of the user: the text as written, the mistake, and a correct alternative.

    The command line prints it without a traceback.
    """


class UnknownNameError(UserError):
    """An unknown name, with the nearest known names.

    >>> raise UnknownNameError("gpu", "h100_smx", ["a100_sxm", "h100_sxm"])
    Traceback (most recent call last):
        ...
    simulators.core.errors.UnknownNameError: unknown gpu 'h100_smx'; did you mean 'h100_sxm'?
    Known: a100_sxm, h100_sxm
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self.known, self.hint = kind, name, tuple(known), hint
        listing = f"Known: {listed(name, sorted(self.known))}"
        alike = [n for n in self.known if _line(n) == _line(name)] if kind == "gpu" else self.known
        super().__init__(
            f"unknown {kind} '{name}'{suggestion(name, alike)}\n{listing}"
            + (f". {hint}" if hint else "")
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by constructor arguments, so that workers can return the error."""
        return (type(self), (self.kind, self.name, self.known, self.hint))


class Infeasible(Exception):  # noqa: N818 - an outcome, like StopIteration, not an error
    """A design point that cannot exist. It becomes a row with a reason.

    `reason` is a short stable code, such as `weights_exceed_hbm`; `detail` has the figures.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


def unknown(message: str, name: str, known: Iterable[str], listing: str = "Known") -> UserError:
    """Return the error for an unknown name: message, nearest known name and list of names.

    >>> print(unknown("there is no axis 'tq'", "tq", ["tp", "model"]))
    there is no axis 'tq'; did you mean 'tp'?
    Known: tp, model
    """
    names = list(known)
    return UserError(f"{message}{suggestion(name, names)}\n{listing}: {listed(name, names)}")


def listed(name: str, known: Sequence[str]) -> str:
    """Return a list of names; of more than `_LISTED` names, the nearest to `name` and a count.

    >>> listed("llama", [*"abcdefghijklmnopqrstuvwxyz", "llama2"]).split(", ")[::15]
    ['llama2', 'o']
    """
    if len(known) <= _LISTED:
        return ", ".join(known) or "none"
    wanted = name.casefold()

    def similarity(other: str) -> float:
        spelt = other.casefold()
        return (wanted in spelt) + difflib.SequenceMatcher(None, spelt, wanted).ratio()

    near = sorted(known, key=similarity, reverse=True)
    return f"{', '.join(near[:_LISTED])}, ... and {len(known) - _LISTED} more"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or an empty string.

    >>> suggestion("tq", ["tp", "model"])
    "; did you mean 'tp'?"
    >>> suggestion("draft_tokens", ["prompt_tokens", "speculation.num_draft_tokens"])
    "; did you mean 'speculation.num_draft_tokens'?"
    >>> suggestion("--tensor-parallel-size", ["--tpot"]), suggestion("tensor_parallel", ["tp"])
    ('', "; did you mean 'tp'?")
    """
    if said := not_modelled(name):
        return f"; {said}"
    if ours := our_names(name):
        meant = next((word for one in ours for word in known if _folded(word) == one), "")
        if meant or name.startswith("-") or ours != [_folded(name)]:
            return f"; did you mean '{meant}'?" if meant else ""
    words = [word for word in known if word != name]
    options = {word.rpartition(".")[2]: word for word in words if "." in word}
    near = difflib.get_close_matches(name.lower(), [*words, *options], n=1, cutoff=0.5)
    return f"; did you mean '{options.get(near[0], near[0])}'?" if near else ""


def our_names(name: str) -> list[str]:
    """Return our names for an option of this or another tool; empty if none is known.

    >>> our_names("--tp-size"), our_names("tp"), our_names("tpp")
    (['tp'], ['tp'], [])
    """
    wanted = _folded(name)
    spellings = tomllib.loads(SPELLINGS.read_text(encoding="utf-8"))
    return [ours for ours, others in spellings.items() if wanted in (ours, *others)]


def _folded(name: str) -> str:
    """Return an option as an axis is written, as in `tp_size` for `--tp-size`."""
    return re.sub(r"[\s-]+", "_", name.casefold().lstrip("-"))


def _line(gpu: str) -> str:
    """Return the leading letters of a GPU's name, so that A30 is not suggested for MI300."""
    match = re.match(r"[a-z]+", gpu.casefold())
    return match.group() if match else ""


def not_modelled(word: str) -> str:
    """Return the message for a known option that is not modelled, or an empty string.

    >>> not_modelled("Beam-Search")
    'beam search is not modelled; every request is one sequence'
    >>> not_modelled("tpp")
    ''
    """
    spelt = re.sub(r"[\s.-]+", "_", word.casefold())
    sentences = tomllib.loads(SENTENCES.read_text(encoding="utf-8"))
    return next((said for form, said in sentences.items() if re.search(form, spelt)), "")
