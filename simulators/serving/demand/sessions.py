"""In a session each prompt repeats what was said before, and comes when the last answer was read.

The prompt of a turn is all earlier prompts and answers of the session and what the user adds; it is
computed anew, since no prefix is cached. A turn arrives a think time after the end of the turn
before it, so a slow service is asked less.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Ints
from simulators.serving.demand.arrivals import Requests
from simulators.serving.engine.replica import NOBODY


def in_sessions(asked: Requests, turns: int, think_s: float) -> Requests:
    """Return the same questions, so many after each other in a session.

    Args:
        asked: single requests; the first arrivals become those of the sessions.
        turns: of each session; the last one may be shorter.
        think_s: between an answer and the next question.

    Raises:
        UserError: a choice means nothing.
    """
    if turns < 1:
        raise UserError(f"turns is {turns}; it must be at least 1")
    if not 0.0 <= think_s < np.inf:
        raise UserError(f"think_s is {think_s:g}; it must not be negative")
    count = asked.arrival_s.size
    session, turn = np.divmod(np.arange(count), turns)
    said = np.concatenate(
        [np.zeros(1, np.int64), np.cumsum(asked.prompt_tokens + asked.output_tokens)]
    )
    history = said[:-1] - said[session * turns]
    return replace(
        asked,
        arrival_s=np.where(turn == 0, asked.arrival_s[session], think_s),
        prompt_tokens=asked.prompt_tokens + history,
        session=session,
    )


def successors(session: Ints) -> Ints:
    """Return per request the next of its session, or nobody.

    >>> successors(np.array([0, 0, 3, 3, 3])).tolist()
    [1, -1, 3, 4, -1]
    """
    follower = np.arange(1, session.size + 1)
    follower[:-1][session[1:] != session[:-1]] = NOBODY
    follower[-1] = NOBODY
    return follower
