"""Models bound by table lookups: recommendation, and graph convolutions.

DLRM looks up and sums rows of large tables, and multiplies every pair of the results (Naumov et
al., 2019). A graph convolution gathers the features of all neighbors, sums them per node and
multiplies by a matrix (Kipf and Welling, 2017). Both are bound by memory where their tables are.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.workload.graphs.graph import Graph, Load, ModelFamily, Sketch


@dataclass(frozen=True, kw_only=True)
class Recommender(ModelFamily):
    """Dense features through one stack, tables beside it, pairwise products into another."""

    dense: int  # dense features
    width: int  # numbers per row of every table
    tables: tuple[int, ...]  # rows
    lookups: int  # rows summed per table and sample
    bottom: tuple[int, ...]
    top: tuple[int, ...]

    def draw(self, load: Load) -> Graph:
        """Return the graph for a batch of samples; the length is the rows summed per table."""
        g, batch = Sketch(self.name), load.batch
        x = g.input((batch, self.dense), "dense")
        for width in self.bottom:
            x = g.relu(g.linear(x, width, name="bottom"))
        found = [x]
        for rows in self.tables:
            ids = g.input((batch, load.length or self.lookups), "ids")
            table = ((rows, self.width),)
            found.append(
                g.node("embedding_bag", (ids,), (batch, self.width), weights=table, name="table")
            )
        count = len(found)
        joined = g.copy(found, (batch, count, self.width), name="join")
        turned = g.view(joined, (batch, self.width, count))
        pairs = g.matmul(joined, turned, name="pairs")
        below = count * (count - 1) // 2
        x = g.copy((pairs, x), (batch, below + self.width), name="lower_triangle")
        for width in self.top[:-1]:
            x = g.relu(g.linear(x, width, name="top"))
        g.pointwise("sigmoid", g.linear(x, self.top[-1], name="top"))
        return g.graph()


@dataclass(frozen=True, kw_only=True)
class GraphConvolution(ModelFamily):
    """Layers of gather, sum per node, and multiply, over one whole graph."""

    nodes: int
    edges: int  # directed
    features: int
    widths: tuple[int, ...]

    def draw(self, load: Load) -> Graph:
        """Return the graph for a batch of graphs; the length is the number of nodes of each."""
        g = Sketch(self.name)
        nodes = load.batch * (load.length or self.nodes)
        edges = round(self.edges * nodes / self.nodes)
        x = g.input((nodes, self.features), "features")
        for layer, width in enumerate(self.widths):
            # The narrower features are sent along the edges.
            x = g.linear(x, width) if width <= g.shape(x)[1] else x
            along = g.node("gather", (x,), (edges, g.shape(x)[1]), name="neighbours")
            x = g.node("scatter", (x, along), (nodes, g.shape(x)[1]), name="sum_per_node")
            x = g.linear(x, width) if g.shape(x)[1] != width else x
            x = g.relu(x) if layer + 1 < len(self.widths) else x
        return g.graph()
