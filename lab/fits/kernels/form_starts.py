"""Where fits of kernels' forms begin: numbers of the right size, by how kernels are built."""

from __future__ import annotations

PREFILL = {
    "start_s": 5e-6,
    "compute": 0.6,
    "bandwidth": 0.7,
    "tile": 64.0,
    "step": 32.0,
    "softmax": 64.0,
    "tail": 0.5,
}
"""Tiles of 128 queries by 64 keys, and an exponential's worth of 64 FLOPs."""
BESIDE = {**{name: value for name, value in PREFILL.items() if name != "tail"}, "beside": 0.9}
"""The same with blocks that all start at once: a few rows of queries are no faster than many."""
DECODE = {
    "start_s": 5e-6,
    "compute": 0.2,
    "bandwidth": 0.8,
    "lead": 64.0,
    "block_clocks": 500.0,
    "l2_speed": 2.0,
    "l2_share": 0.8,
    "key_clocks": 30.0,
    "split": 0.5,
}
"""Query heads padded to a matrix instruction leave a fifth of the peak."""
EXPERTS = {
    "start_s": 1e-5,
    "compute": 0.6,
    "bandwidth": 0.8,
    "traffic": 0.3,
    "passing": 0.3,
    "pad": 32.0,
    "step_s": 2e-9,
    "awake_clocks": 50.0,
    "expert_clocks": 20.0,
}
"""Half a tile of 64 rows is empty in each expert."""
TWO_TILES = {**EXPERTS, "tall": 1.1, "unaligned": 1.1}
"""The same of a library that takes low tiles up to a token an expert and tall ones beyond, which
read weights slower, and whose loads are whole vectors where a width is a multiple of 16 alone."""
FORMS = {
    "prefill": (PREFILL, BESIDE),
    "mixed": (PREFILL,),
    "decode": (DECODE,),
    "experts": (EXPERTS, TWO_TILES),
}
"""The forms a kernel may have; the one that fits better is kept."""
PARTS = ("compute", "bandwidth", "traffic")
"""Numbers that are parts of a data sheet's rate: at most one."""
WARP_LATENT = {
    "start_s": 5e-6,
    "start_clocks": 5e3,
    "key_clocks": 100.0,
    "gap_clocks": 70.0,
    "wave_clocks": 5e3,
}
"""Microseconds of launch, and thousands of clocks before the first key."""
WARP_PROMPT = {
    "start_s": 5e-6,
    "compute": 0.6,
    "bandwidth": 0.7,
    "tile": 64.0,
    "step": 32.0,
    "exponentials": 1.0,
    "tail": 0.5,
}
"""Tiles of 128 queries by 64 keys, and one exponential a pair."""
TRITON_LATENT = {
    "block_clocks": 5e3,
    "head_clocks": 500.0,
    "key_clocks": 140.0,
    "lone_clocks": 500.0,
}
"""Thousands of clocks before the first key, as of other such kernels."""
TRITON_PROMPT = {"start_s": 5e-6, "block_clocks": 5e3, "wait_clocks": 500.0}
"""A launch, thousands of clocks before the first key, and an L2 hit or two."""
CHAIN = {"start_s": 2e-6, "l2": 10.0, "share": 0.6, "rest": 0.05, "bandwidth": 0.9}
"""Of a layer's pointwise chain: `l2` is bytes per clock of an SM, `share` of L2 still holds the
input. However much more passes through, `rest` of it does."""
