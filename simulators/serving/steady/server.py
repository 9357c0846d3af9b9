"""What the server before an engine adds to the first token of the mean request."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from simulators.core.columns import categories
from simulators.core.jit import Floats, Ints
from simulators.serving.engine.frontend import NUMBERS, load_frontend
from simulators.serving.point import NONE
from simulators.serving.steady.columns import Lengths


def server_s_of(batch: pa.RecordBatch, alive: Ints, lengths: Lengths, tpot_s: Floats) -> Floats:
    """Return what the server before an engine adds to the first token of the mean request."""
    runtimes, names = categories(batch, "runtime")
    choices, words = categories(batch, "frontend")
    known = [load_frontend(str(name)) for name in names]
    request_s, token_s, iterations = (
        np.array([getattr(one, name) for one in known])[runtimes[alive]] for name in NUMBERS
    )
    added_s = request_s + token_s * (lengths.prompt + lengths.found) + iterations * tpot_s
    wanted = np.array([word != NONE for word in words])[choices[alive]]
    found: Floats = np.where(wanted, np.nan_to_num(added_s), 0.0)
    return found
