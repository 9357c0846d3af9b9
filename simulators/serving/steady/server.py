"""Mean delay of the first token by the API server in front of an engine."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from simulators.core.columns import categories
from simulators.core.jit import Floats, Ints
from simulators.serving.engine.frontend import NUMBERS, load_frontend, load_process
from simulators.serving.point import NONE
from simulators.serving.steady.columns import Lengths


def server_s_of(batch: pa.RecordBatch, alive: Ints, lengths: Lengths, tpot_s: Floats) -> Floats:
    """Return the mean delay of the first token by the API server, in seconds per row."""
    runtimes, names = categories(batch, "runtime")
    choices, words = categories(batch, "client.frontend")
    known = [(load_process(str(name)), load_frontend(str(name))) for name in names]
    has_server = np.array([int(word != NONE) for word in words])[choices[alive]]
    request_s, token_s, iterations = (
        np.array([[getattr(one, number) for one in both] for both in known])[
            runtimes[alive], has_server
        ]
        for number in NUMBERS
    )
    added_s: Floats = request_s + token_s * (lengths.prompt + lengths.found) + iterations * tpot_s
    return np.nan_to_num(added_s)
