"""Two models and a graph that are small enough to plan by hand, for tests that name a fault where it is.

The graph: vertices 0 to 7, chunks of two, partition 0 has the first two chunks and partition 1 the others::

    chunk     destinations    in-edges                  neighbour set
    (0, 0)    0 1             1->0  2->0  4->1          1 2 4
    (0, 1)    2 3             1->2  4->3  5->3          1 4 5
    (1, 0)    4 5             5->4  1->5                1 5
    (1, 1)    6 7             2->6  5->7  6->7          2 5 6
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hongtu.graph.topology import Topology, build_topology
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.shapes import LayerShape, NetworkShape
from hongtu.plan.passes.strategy import Choice, Strategy, get_strategy
from hongtu.plan.program.program import PassProgram, Program
from hongtu.plan.search.build import make_plan

EDGES = ((1, 0), (2, 0), (4, 1), (1, 2), (4, 3), (5, 3), (5, 4), (1, 5), (2, 6), (5, 7), (6, 7))  # by destination
V = 8


def topology(partitions: int = 2, chunks: int = 2) -> Topology:
    """The graph in chunks of the same size, with edge weights 1, 2, 3, ..."""
    source, destination = np.array(EDGES).T
    start = np.searchsorted(destination, np.arange(V + 1))
    cuts = np.linspace(0, V, partitions * chunks + 1).astype(np.int64)
    return build_topology(partitions, cuts, start, source, np.arange(1, len(EDGES) + 1, dtype=np.float32))


def dense() -> np.ndarray:
    """float64 [V, V]: the weights of the graph, destinations by sources."""
    found = np.zeros((V, V))
    for weight, (source, destination) in enumerate(EDGES, start=1):
        found[destination, source] = weight
    return found


def layer(z: int, a: int | None = None, *, linear: bool = True, **options: Any) -> LayerShape:
    """One of GCN's; with ``linear=False`` one of GAT's with one head."""
    if linear:
        own: dict[str, Any] = {
            "s": (None,),
            "reduce": "sum",
            "weighted": True,
            "uses_statistics": True,
            "combined": True,
        }
    else:
        own = {"s": (None, 1), "reduce": None, "weighted": False, "uses_statistics": False}
    return LayerShape(z=z, a=z if a is None else a, linear=linear, z_is_input=False, **(own | options))


def network(*layers: LayerShape, **options: Any) -> NetworkShape:
    """Of 4 features and 2 classes."""
    given = {"features": 4, "output": 2, "itemsize": 4, "model_bytes": 100, "label_bytes": 8}
    return NetworkShape(layers=layers, **(given | options))


GCN = network(layer(4, trained=False), layer(3), constant_layers=1)
GAT = network(layer(4, 3, linear=False), layer(3, 2, linear=False))


def plan(
    shape: NetworkShape,
    strategy: str | Strategy,
    choice: Choice | None = None,
    sizes: tuple[int, int] = (2, 2),
    schedule: np.ndarray | None = None,
) -> ExecutionPlan:
    """Of a model on the graph, with transfers, nothing probed; sizes: partitions and chunks."""
    chunks = topology(*sizes)
    order = chunks.input_order if schedule is None else schedule
    return make_plan(chunks, order, shape, get_strategy(strategy), choice=choice)


def named(program: Program, name: str) -> PassProgram:
    """The pass of that name."""
    (found,) = (p for p in (*program.setup, *program.train, *program.evaluate) if p.name == name)
    return found
