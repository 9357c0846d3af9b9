"""A plain-Python replay of a cache with tiers: one request after another, blocks by their ids.

Written from the descriptions of the policies, block by block and without the arrays of the engine.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass
class Tier:
    """Blocks of a tier, and the rules by which it evicts them."""

    capacity: int
    eviction: str = "lru"
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)  # least recent first
    uses: dict[int, int] = field(default_factory=dict)
    next_use: dict[int, tuple[int, int]] = field(default_factory=dict)

    def use(self, block: int, next_use: tuple[int, int]) -> None:
        """Insert a block, or mark it as used."""
        self.uses[block] = self.uses.get(block, 0) + 1 if block in self.blocks else 1
        self.blocks.pop(block, None)
        self.blocks[block] = None
        self.next_use[block] = next_use

    def victim(self) -> int:
        """Return the block to evict; the least recent one of equal ones."""
        if self.eviction == "lfu":
            return min(self.blocks, key=lambda block: self.uses[block])
        if self.eviction == "belady":
            return max(self.blocks, key=lambda block: self.next_use[block])
        return next(iter(self.blocks))


@dataclass
class Hierarchy:
    """GPU memory of several replicas, and the tiers behind it."""

    gpu_blocks: int
    tiers: list[list[Tier]]  # of each replica
    policy: str
    page: int
    paths: list[list[int]]
    gpu: list[OrderedDict[int, None]] = field(default_factory=list)
    used: dict[tuple[int, int], int] = field(default_factory=dict)
    depth: dict[int, int] = field(default_factory=dict)

    def replay(self) -> list[list[int]]:
        """Return, for each request, the blocks found in GPU memory and in each tier."""
        self.gpu = [OrderedDict() for _ in self.tiers]
        self.depth = {block: k for path in self.paths for k, block in enumerate(path)}
        return [self.serve(n, path, n % len(self.tiers)) for n, path in enumerate(self.paths)]

    def serve(self, number: int, path: list[int], replica: int) -> list[int]:
        """Serve one request and return the blocks found in GPU memory and in each tier."""
        gpu, tiers = self.gpu[replica], self.tiers[replica]
        near = next((k for k, block in enumerate(path) if block not in gpu), len(path))
        places = [
            next((t for t, tier in enumerate(tiers) if block in tier.blocks), None)
            for block in path[near:]
        ]
        found = next((k for k, place in enumerate(places) if place is None), len(places))
        if self.page > 1 and found:
            found = max(0, (near + found) // self.page * self.page - near)
        hits = [near] + [places[:found].count(t) for t in range(len(tiers))]
        # The request holds its blocks, and one more for the token behind them.
        others = [block for block in gpu if block not in path]
        for block in others[: max(0, len(others) + len(path) + 1 - self.gpu_blocks)]:
            gpu.pop(block)
            if self.policy == "write_back" and block not in tiers[0].blocks:
                self.write(replica, 0, block, self.after(number, block))
        for block in reversed(path):
            gpu.pop(block, None)
            gpu[block] = None
            count = self.used[replica, block] = self.used.get((replica, block), 0) + 1
            written = self.policy == "write_through" or (
                self.policy == "write_through_selective" and count > 1
            )
            for t, tier in enumerate(tiers):
                if written:
                    self.write(replica, t, block, self.after(number + 1, block))
                elif block in tier.blocks:
                    tier.use(block, self.after(number + 1, block))
        return hits

    def after(self, number: int, block: int) -> tuple[int, int]:
        """Return the next use of a block from a request on, and its depth."""
        later = (n for n in range(number, len(self.paths)) if block in self.paths[n])
        return next(later, len(self.paths)), self.depth[block]

    def write(self, replica: int, t: int, block: int, next_use: tuple[int, int]) -> None:
        """Write a block to a tier; with write-back, evicted blocks go to the next tier."""
        tier = self.tiers[replica][t]
        tier.use(block, next_use)
        while len(tier.blocks) > tier.capacity:
            lost = tier.victim()
            tier.blocks.pop(lost)
            behind = self.tiers[replica][t + 1 : t + 2]
            if self.policy == "write_back" and behind and lost not in behind[0].blocks:
                self.write(replica, t + 1, lost, tier.next_use[lost])
