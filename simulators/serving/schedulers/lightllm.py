"""A prompt is admitted only if nobody will run out of memory on the way to the last token.

LightLLM's token attention: memory is counted in single tokens. With the requests sorted by what is
left to generate, the most memory is in use when one of them ends; the sum must fit at each such
moment. Prompts are looked at when nothing runs, or every few decode iterations.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints, arrays, i8, matrix
from simulators.serving.engine.admission import may_admit
from simulators.serving.engine.kernel import kernel
from simulators.serving.engine.kv_cache import allocate, preemptions, seat_decodes
from simulators.serving.engine.replica import (
    BATCH,
    BATCH_TOKENS,
    DONE,
    ELAPSED,
    HEAD,
    IDLE,
    MEMO,
    OUTPUT,
    PATIENCE,
    PROMPT,
    SCHEDULE,
    TOTAL,
    pop_waiting,
    seat,
)

REQUIRES = {"block_size": 1, "pp": 1}
POLL_INTERVAL = 10


@kernel(SCHEDULE)
def schedule(
    _now: float,
    limits: Ints,
    pool: Ints,
    request: Ints,
    _times: Floats,
    waiting: Ints,
    idle: Ints,
    batch: Ints,
    tokens: Ints,
) -> int:
    """Admit prompts when it is time to; otherwise one token to every running request.

    `MEMO` counts decode iterations since the queue was last looked at.
    """
    if pool[IDLE] == 0:
        pool[MEMO] = 0
        admit(limits, pool, request, waiting, idle, batch, tokens)
        return 1
    pool[MEMO] += max(pool[ELAPSED] - 1, 0)
    if pool[MEMO] >= limits[PATIENCE]:
        pool[MEMO] = 0
        if admit(limits, pool, request, waiting, idle, batch, tokens) > 0:
            return 1
    pool[MEMO] += 1
    preempted = preemptions(pool)
    seat_decodes(limits, pool, request, waiting, idle, batch, tokens)
    if pool[IDLE] > 0 or preemptions(pool) > preempted:
        return 1
    return limits[PATIENCE] - pool[MEMO] + 1  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), matrix(i8), *arrays(i8, 4)))
def admit(
    limits: Ints, pool: Ints, request: Ints, waiting: Ints, idle: Ints, batch: Ints, tokens: Ints
) -> int:
    """Take prompts from the queue while all would run to their end; return how many."""
    total = 0
    while may_admit(limits, pool):
        who = waiting[pool[HEAD]]
        prompt = request[who, PROMPT]
        total += prompt
        if total > limits[BATCH_TOKENS] and pool[BATCH] > 0:
            break
        batch[pool[BATCH]] = who
        if most_used(pool, request, idle, batch) >= pool[TOTAL]:
            break
        pop_waiting(pool, waiting)
        allocate(pool, request, who, prompt)
        seat(pool, batch, tokens, who, prompt)
    return pool[BATCH]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), *arrays(i8, 2)))
def most_used(pool: Ints, request: Ints, idle: Ints, batch: Ints) -> int:
    """Return the most tokens ever held if the candidate after the batch joins and nobody else does.

    When a request with `left` tokens to go ends, those with at least as many hold what they hold
    now and `left` more each.
    """
    running, most = pool[IDLE], 0
    count = running + pool[BATCH] + 1
    for i in range(count):
        left = to_go(request, idle[i] if i < running else batch[i - running])
        held, others = 0, 0
        for j in range(count):
            who = idle[j] if j < running else batch[j - running]
            if to_go(request, who) >= left:
                held += max(request[who, DONE], request[who, PROMPT] + 1)
                others += 1
        most = max(most, left * others + held)
    return most


@kernel(i8(matrix(i8), i8))
def to_go(request: Ints, who: int) -> int:
    """Return the output tokens a request will still need memory for."""
    generated = max(request[who, DONE] - request[who, PROMPT], 1)
    return max(request[who, OUTPUT] - generated - 1, 0)  # type: ignore[no-any-return]
