"""A prompt is admitted only if nobody will run out of memory on the way to the last token.

LightLLM's token attention: memory is counted in single tokens. With the requests sorted by what is
left to generate, the most memory is in use when one of them ends; the sum must fit at each such
moment. Prompts are looked at when nothing runs, or every few decode iterations.
"""

from __future__ import annotations

from simulators.core.jit import i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.admission import admit, may_admit
from simulators.serving.engine.kv_cache import preemptions, seat_decodes
from simulators.serving.engine.replica import SCHEDULE, VIEW, View, kernel

REQUIRES = {"cache.block_size": 1, "pp": 1}
POLL_INTERVAL = 10


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Admit prompts when it is time to; otherwise one token to every running request.

    `MEMO` counts decode iterations since the queue was last looked at.
    """
    pool, patience = view.pool, view.limits[at.PATIENCE]
    if pool[at.IDLE] == 0:
        pool[at.MEMO] = 0
        admit_safe(view)
        return 1
    pool[at.MEMO] += max(pool[at.ELAPSED] - 1, 0)
    if pool[at.MEMO] >= patience:
        pool[at.MEMO] = 0
        if admit_safe(view) > 0:
            return 1
    pool[at.MEMO] += 1
    preempted = preemptions(pool)
    seat_decodes(view)
    if pool[at.IDLE] > 0 or preemptions(pool) > preempted:
        return 1
    return patience - pool[at.MEMO] + 1  # type: ignore[no-any-return]


@kernel(i8(VIEW))
def admit_safe(view: View) -> int:
    """Take prompts from the queue while all would run to their end; return how many."""
    limits, pool = view.limits, view.pool
    total = 0
    while may_admit(limits, pool):
        who = view.waiting[pool[at.HEAD]]
        prompt = view.request[who, at.PROMPT]
        total += prompt
        if total > limits[at.BATCH_TOKENS] and pool[at.BATCH] > 0:
            break
        view.batch[pool[at.BATCH]] = who
        if most_used(view) >= pool[at.TOTAL]:
            break
        admit(view, prompt, prompt, 0)
    return pool[at.BATCH]  # type: ignore[no-any-return]


@kernel(i8(VIEW))
def most_used(view: View) -> int:
    """Return the most tokens ever held if the candidate after the batch joins and nobody else does.

    When a request with `left` tokens to go ends, those with at least as many hold what they hold
    now and `left` more each.
    """
    request, running, most = view.request, view.pool[at.IDLE], 0
    count = running + view.pool[at.BATCH] + 1
    for i in range(count):
        left = to_go(view, member(view, i))
        held, others = 0, 0
        for j in range(count):
            who = member(view, j)
            if to_go(view, who) >= left:
                held += max(request[who, at.DONE], request[who, at.PROMPT] + 1)
                others += 1
        most = max(most, left * others + held)
    return most


@kernel(i8(VIEW, i8))
def member(view: View, place: int) -> int:
    """Return who runs, by place: the idle first, then the batch being formed."""
    running = view.pool[at.IDLE]
    return view.idle[place] if place < running else view.batch[place - running]  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8))
def to_go(view: View, who: int) -> int:
    """Return the output tokens a request will still need memory for."""
    request = view.request
    generated = max(request[who, at.DONE] - request[who, at.PROMPT], 1)
    return max(request[who, at.OUTPUT] - generated - 1, 0)  # type: ignore[no-any-return]
