"""MG-GCN (Balin et al., arXiv 2110.08688), a GCN in memory on m GPUs, beside ``full``: seconds, memory, permutation.

    python -m experiments.paper --work DIR --results DIR --only MG-GCN

A device has an even range of the vertices. To sum over in-edges, the devices broadcast their rows in turn; with a
second buffer the next block arrives beside the sum over the last. A random permutation of the vertices evens out the
blocks. Layers share all but their outputs, so that L + 3 buffers are enough. Rows of ``experiments/paper.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import hongtu
from experiments.cells import FULL, HERE, Cells, beside, cell
from experiments.prepare import real_graph
from experiments.published import AT_SIZE, EDGE_BYTES, Rows, most_columns, predict, tables, tiny_plan
from experiments.rows_loaded import read as read_graph
from hongtu.config import size
from hongtu.hardware import A100X4, Hardware
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import predict_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.preprocess.csc import Csc
from hongtu.preprocess.partition import partition_vertices
from hongtu.train.planning import plan_model

TABLE, GRAPHS, ITEM = "MG-GCN", {"web-cnr-2000": False, "ogbn-arxiv": True}, 4
WIDTHS = (104, 256, 256, 47)  # of its model for ogbn-products, where a graph of ours has no features
OVERLAP = {1: "copies and arithmetic in turn", 2: "copies beside arithmetic"}  # by sets of staging memory


def machine_of(devices: int) -> Hardware:
    """Of the DGX-A100: NVSwitch has 300 GB/s in either direction."""
    return replace(A100X4, devices=devices, peer_link=300e9)


def with_sets(plan: ExecutionPlan, sets: int) -> ExecutionPlan:
    """The same plan with so many sets of staging memory: with one, a batch's copies wait for the last one's."""
    return replace(plan, choice=replace(plan.choice, staging=sets))


def shared_buffers(vertices: float, widths: Sequence[int]) -> float:
    """Bytes of its L + 3 buffers on a device with so many vertices: every layer's output, and three as wide as the
    widest of them, for the product and for two blocks of broadcasts."""
    return ITEM * vertices * (sum(widths[1:]) + 3 * max(widths[1:]))


# --------------------------------------------------------------------------------------- at the published sizes


def at_published_sizes() -> Cells:
    """Its Table 3, where every device reads every row, as its broadcasts do, and the memory of that."""
    known = tables()["mg-gcn"]
    seconds = dict(known["table_3_epoch_seconds"])
    for k, m in enumerate(seconds.pop("gpus")):
        for graph, row in seconds.items():
            widths, hardware = tuple(known["models"][graph]), machine_of(m)
            vertices, edges = (known["graphs"][graph][name] for name in ("vertices", "edges"))
            plan = tiny_plan("gcn", widths, "full", hardware)
            both = input_bytes(graph, m)
            ours = most_tensors(plan, vertices / m, m)
            fits = ours + both <= (hardware.usable_memory or 0)
            kind = f"{FULL}, fixed costs left out" + ("" if fits else ", if the device's memory were larger")
            for sets in (1, 2)[: 1 + (m > 1)]:
                s = predict(with_sets(plan, sets), hardware, vertices, edges, Rows(m, 1, 1), resident=1).total
                what = f"its Table 3, {m} GPUs, {OVERLAP[sets]}"
                if row[k] is None:
                    yield cell(TABLE, what, graph, f"{s:.3f} s", kind, "not run")
                else:
                    yield beside(TABLE, what, graph, s, row[k], kind)
            buffers = shared_buffers(vertices / m, widths)
            yield memory(graph, m, ours, both, buffers, "at most, with all rows of others at once")


def input_bytes(graph: str, m: int) -> float:
    """Bytes of features and edges on a device."""
    known = tables()["mg-gcn"]
    sizes = known["graphs"][graph]
    return (ITEM * known["models"][graph][0] * sizes["vertices"] + EDGE_BYTES * sizes["edges"]) / m


def most_tensors(plan: ExecutionPlan, own: float, m: int) -> float:
    """Bytes that ``full`` has at most on a device with so many vertices, beside features and edges: tensors of these
    and, for one pass, all rows of the other devices and their gradients."""
    width = plan.passes.width
    there = sum(most_columns(plan)) - width["features"]
    others = max(sum(width[name] for name in (p.exchange, p.flush) if name) for p in plan.passes.train)
    return ITEM * own * (there + (m - 1) * others)


def memory(graph: str, m: int, ours: float, both: float, buffers: float, why: str) -> dict[str, str]:
    """A row: bytes of ``full`` and of L + 3 buffers, ``both`` of them beside those of features and edges."""
    text = f"full {size(int(ours))}, L + 3 buffers {size(int(buffers))}"
    why = f"{why}; L + 3 buffers by their sizes; both beside {size(int(both))} of features and edges"
    return cell(TABLE, f"memory of a device, {m} GPUs", graph, text, FULL, why=why)


# -------------------------------------------------------------------------------------------- graphs at hand


def here() -> Cells:
    for name, undirected in GRAPHS.items():
        path = real_graph(name)
        if path is not None:
            graph = read_graph(path, undirected)
            for m in (4, 8):
                yield permutation(name, graph, m)
                yield from planned(name, graph, m)


def edges_of(graph: Csc) -> np.ndarray:
    """int [2, E], sources and destinations."""
    vertices = len(graph.in_edge_start) - 1
    return np.stack((graph.source, np.repeat(np.arange(vertices), np.diff(graph.in_edge_start))))


def permutation(name: str, graph: Csc, m: int) -> dict[str, str]:
    """Largest over mean edges in even ranges of vertices, in the order of the input and permuted; and in ours."""
    vertices, edges = len(graph.in_edge_start) - 1, edges_of(graph)
    ours = partition_vertices("range", *graph[:2], m, train_mask=np.ones(vertices, bool), seed=0)
    parts = {
        "input order": np.arange(vertices) * m // vertices,
        "permuted": np.random.default_rng(0).permutation(vertices) * m // vertices,
        "partitioner range": ours,
    }
    texts = []
    for order, part in parts.items():
        device, steps = imbalance(part, edges, m)
        texts.append(f"{order} {device:.2f}x ({steps:.2f}x)")
    what = f"edges of the largest device over the mean (if all wait after every broadcast), {m} GPUs"
    return cell(TABLE, what, name, ", ".join(texts), HERE, why="edges are counted")


def imbalance(part: np.ndarray, edges: np.ndarray, m: int) -> tuple[float, float]:
    """Of m devices, the edges of the largest over the mean; and the same where all wait after every broadcast: the
    largest block of each, added up."""
    source, destination = part[edges].astype(np.int64)
    blocks = np.bincount(destination * m + source, minlength=m * m).reshape(m, m)
    mean = blocks.sum() / m
    return float(blocks.sum(axis=1).max() / mean), float(blocks.max(axis=0).sum() / mean)


def planned(name: str, graph: Csc, m: int) -> Cells:
    """The plan of ``full`` on a graph that is permuted the same way: bytes are exact, seconds those of its program."""
    vertices, edges, hardware = len(graph.in_edge_start) - 1, edges_of(graph), machine_of(m)
    with tempfile.TemporaryDirectory() as folder:
        artifact = hongtu.preprocess_graph(
            edges, vertices, Path(folder) / "artifact", features=f"random:{WIDTHS[0]}", labels=f"random:{WIDTHS[-1]}",
            masks={"train": np.ones(vertices, bool)}, partitions=m, chunks=m, order="input", partitioner="random",
        )  # fmt: skip
        layers = build_layers("gcn", WIDTHS[0], WIDTHS[1], WIDTHS[-1], len(WIDTHS) - 1)
        plan = plan_model(artifact, layers, strategy=AT_SIZE["full"], hardware=hardware)
    own = np.diff(plan.topology.partition_start)
    fixed = [ITEM * int(own[i]) * WIDTHS[0] + plan.structure_bytes(i) for i in range(m)]
    total, both = max((total, both) for total, both in zip(plan.device_bytes.values(), fixed, strict=True))
    yield memory(name, m, total - both, both, shared_buffers(int(own.max()), WIDTHS), "exact, the graph permuted")
    for sets, how in OVERLAP.items():
        s = predict_seconds(with_sets(plan, sets), hardware).total
        why = "fixed costs included, the graph permuted"
        yield cell(TABLE, f"epoch, {m} GPUs, {how}", name, f"{s * 1e3:.2f} ms", FULL, why=why)
