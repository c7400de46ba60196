"""What a machine would take for the HongTu paper's graphs, of which only sizes and volumes are known, and what it took.

    python -m experiments.published    # fit the profile a100x4 on half of the published times; the errors on the other

Sizes, widths, chunks and volumes come from the published tables: a pass over such a graph moves and computes what a
plan's pass does, at those sizes. Fixed costs of chunks are left out. Legend: V vertices, E edges.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import hongtu
from hongtu.hardware import CPU, Hardware
from hongtu.kernels.dispatch import as_on_gpu
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import Seconds, aggregate_seconds, overlapped, rowwise_seconds
from hongtu.plan.cost.work import Extent, pass_work
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.strategy import STRATEGIES, Strategy
from hongtu.train.planning import plan_model

LARGE = ("it-2004", "ogbn-papers100M", "friendster")
EDGE_BYTES = 8  # of the structure of an edge: its source, its weight
PART = Path("published") / "tables.json"


@functools.cache
def tables() -> dict[str, Any]:
    """The published numbers, or nothing where they are not at hand (``HONGTU_DATA``)."""
    folder = os.environ.get("HONGTU_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
    file = Path(folder) / PART
    return json.loads(file.read_text()) if file.is_file() else {}


@dataclass(frozen=True)
class Rows:
    """Rows of a pass over V: of every chunk, brought once a batch, and new in a batch (V_ori, V_+p2p, V_+ru)."""

    ori: float
    p2p: float
    ru: float


def volume(graph: str, model: str, strategy: str = "paper", parts: int | None = None) -> Rows:
    """Those of the paper's chunks: of GCN's, Table 8; of another number of them, as GAT's, which are twice as many,
    V_ori of Table 3, and the shares that Table 8 says are saved."""
    hongtu_tables = tables()["hongtu"]
    known = hongtu_tables["table_8_host_rows_per_pass_over_vertices"][graph]
    ori, between, reused = known["ori"], known["saved_between_gpus"], known["saved_by_reuse"]
    if model == "gat" and parts is None:
        parts = hongtu_tables["partitions"] * hongtu_tables["graphs"][graph]["chunks_per_partition"]["gat"]
    if parts is not None:
        alpha = hongtu_tables["table_3_replication_factor"]
        scale = alpha[graph][alpha["parts"].index(parts)] / ori
        ori, between, reused = scale * ori, scale * between, scale * reused
    once = ori if strategy == "none" else ori - between
    return Rows(ori, once, once - reused if strategy == "paper" else once)


@dataclass(frozen=True)
class Epoch:
    """A published time.

    Attributes:
        strategy: "paper", "none" for the paper's baseline, or "p2p" for the step between.
        seconds: of an epoch.
    """

    table: str
    graph: str
    model: str
    layers: int
    strategy: str
    seconds: float


def epochs() -> Iterator[Epoch]:
    """Of Table 7 (whose GCN is Table 6's) and 9 (where GCN of two layers stands once more), on the large graphs."""
    hongtu_tables = tables()["hongtu"]
    for model, rows in hongtu_tables["table_7_epoch_seconds_against_distgnn_16_nodes"].items():
        if model not in ("gcn", "gat"):
            continue
        for layers, systems in rows.items():
            for graph, seconds in zip(LARGE, systems["HongTu"], strict=True):
                yield Epoch("Table 7", graph, model, int(layers), "paper", seconds)
    for graph, row in hongtu_tables["table_9_seconds_of_100_epochs_2_layer_gcn"].items():
        yield Epoch("Table 9", graph, "gcn", 2, "none", row["without_deduplication"] / 100)
        yield Epoch("Table 9", graph, "gcn", 2, "paper", row["with"] / 100)


@functools.cache
def tiny_plan(model: str, widths: tuple[int, ...], strategy: str, hardware: Hardware = CPU) -> ExecutionPlan:
    """The plan of a model of that many columns on a graph that does not matter: its passes are those of any graph. A
    partition for each device, with as many batches.

    Features get no gradient: published seconds of 2, 3 and 4 layers leave less than half of its time for layer 1.
    """
    features, hidden, classes = widths[0], widths[1], widths[-1]
    rng, small = np.random.default_rng(0), 64
    with tempfile.TemporaryDirectory() as folder:
        artifact = hongtu.preprocess_graph(
            rng.integers(0, small, (2, 8 * small)), small, Path(folder) / "tiny", features=f"random:{features}",
            labels=f"random:{classes}", masks={"train": np.ones(small, bool)},
            partitions=hardware.devices, chunks=hardware.devices, order="input", partitioner="range",
        )  # fmt: skip
        layers = build_layers(model, features, hidden, classes, len(widths) - 1)
        with as_on_gpu():  # as the published system
            return plan_model(artifact, layers, strategy=AT_SIZE[strategy], hardware=hardware)


AT_SIZE: dict[str, Strategy] = {
    name: replace(strategy, no_input_gradient=True, save=False, prune=False, group=False)
    for name, strategy in STRATEGIES.items()
}


def predict(
    plan: ExecutionPlan, hardware: Hardware, vertices: int, edges: int, rows: Rows, resident: float = 0.0
) -> Seconds:
    """Seconds of an epoch at such a size, split evenly between the devices; copies run beside arithmetic where the
    plan has them do so.

    Args:
        edges: self-loops included.
        resident: the part of all vertex tensors that stays on the devices.
    """
    total, width, item = Seconds(), plan.passes.width, plan.shape.itemsize
    share = hardware.devices
    extent = Extent(vertices / share, edges / share, rows.ori * vertices / share)  # type: ignore[arg-type]
    for p in plan.passes.train:
        sparse = {link: item * vertices * (0 if name is None else width[name]) for link, name in
                  (("load", p.exchange), ("flush", p.flush))}  # fmt: skip
        written = item * vertices * sum(width[name] for name in p.written)
        own = written + item * vertices * sum(width[name] for name in (*p.inputs, *p.gradients))
        structure = EDGE_BYTES * edges if sparse["load"] or sparse["flush"] else 0
        work = pass_work(plan, p, extent)
        on_link = (1 - resident) * rows.ru / hardware.host_link / share
        contiguous = (1 - resident) * own / hardware.host_link
        if not resident:
            contiguous += structure / hardware.host_link
        crossing = (rows.ori - rows.p2p) / hardware.peer_link / share
        s = Seconds(
            load=sparse["load"] * on_link,
            flush=sparse["flush"] * on_link,
            peer=(sparse["load"] + sparse["flush"]) * crossing,
            contiguous=contiguous / share,
            accumulate=(1 - resident) * sparse["flush"] * rows.ru / hardware.host_link,
            aggregate=aggregate_seconds(work, hardware),
            rowwise=rowwise_seconds(work, hardware),
        )
        leaving = (1 - resident) * written / hardware.host_link / share
        total += overlapped(plan, p, s, pushed=sparse["flush"] * crossing, written=leaving)
    return total


def widths_of(graph: str, layers: int) -> tuple[int, ...]:
    """Columns before, between and after the layers."""
    sizes = tables()["hongtu"]["graphs"][graph]
    return (sizes["features"], *[sizes["hidden"]] * (layers - 1), sizes["classes"])


def predict_epoch(epoch: Epoch, hardware: Hardware, parts: int | None = None) -> Seconds:
    """What the published system would take for a published time's run; ``parts``: with another number of chunks."""
    sizes = tables()["hongtu"]["graphs"][epoch.graph]
    plan = tiny_plan(epoch.model, widths_of(epoch.graph, epoch.layers), epoch.strategy)
    edges = sizes["edges"] + sizes["vertices"]
    return predict(plan, hardware, sizes["vertices"], edges, volume(epoch.graph, epoch.model, epoch.strategy, parts))


def predict_full(graph: str, model: str, layers: int, hardware: Hardware) -> tuple[Seconds, float]:
    """Of ``full`` on the same machine, without ``prune``, and the part of its vertex tensors that fits on the devices.
    A partition per device, Table 3's alpha for so many; what does not fit moves, every row once a pass: that is the
    least that lookahead needs, and about what it does with most rows in the cache."""
    sizes, alpha = tables()["hongtu"]["graphs"][graph], tables()["hongtu"]["table_3_replication_factor"]
    plan, vertices = tiny_plan(model, widths_of(graph, layers), "full"), sizes["vertices"]
    ori = alpha[graph][alpha["parts"].index(hardware.devices)]
    need = 4 * vertices * sum(most_columns(plan))
    room = hardware.devices * (hardware.usable_memory or 0) - EDGE_BYTES * sizes["edges"]
    room -= int((ori - 1) * vertices * 4 * 2 * max(widths_of(graph, layers)[1:]))  # mirrors, and their gradients
    part = min(1.0, max(room, 0) / need)
    return predict(plan, hardware, vertices, sizes["edges"], Rows(ori, 1.0, 1.0), part), part


def memory(graph: str, model: str, layers: int) -> dict[str, int]:
    """Bytes on the host of the published system, under the names of Table 1: an edge's source and weight; every layer's
    h and its gradient; aggregates' outputs."""
    sizes, widths = tables()["hongtu"]["graphs"][graph], widths_of(graph, layers)
    width = tiny_plan(model, widths, "paper").passes.width
    checkpoints = sum(columns for name, columns in width.items() if name.startswith("a"))
    rows = 4 * sizes["vertices"]
    topology = EDGE_BYTES * sizes["edges"] + 8 * sizes["vertices"]
    return {"topology": topology, "vertex": 2 * rows * sum(widths), "intermediate": rows * checkpoints}


def most_columns(plan: ExecutionPlan) -> tuple[int, int]:
    """Columns of all vertex tensors that are there at a time, at most: of values and gradients, and of checkpoints."""
    width, there, most = plan.passes.width, set(plan.passes.constant), (0, 0)
    if "features" not in there and not plan.passes.setup:
        there.add("features")
    for p in plan.passes.train:
        there |= set(p.creates)
        kept = sum(width[name] for name in there if name.startswith("a"))
        most = max(most, (sum(width[name] for name in there) - kept, kept), key=sum)
        there -= set(p.frees)
    return most


def held_out(epoch: Epoch) -> bool:
    """Every other published time, like the fields of a chessboard: no graph, model or depth is in one half alone, and
    what two tables have is in the same half."""
    return (LARGE.index(epoch.graph) + epoch.layers + (epoch.model == "gat") + (epoch.strategy == "none")) % 2 == 1


def errors(hardware: Hardware, *, of_held_out: bool) -> np.ndarray:
    """Of one half of the published times, |predicted / published - 1|, ascending."""
    half = (epoch for epoch in epochs() if held_out(epoch) == of_held_out)
    return np.sort([abs(predict_epoch(epoch, hardware).total / epoch.seconds - 1) for epoch in half])


# What is fitted of a nominal profile, and from where to where: a link is no faster than PCIe 4.0 x16, a product no
# faster than TF32, which torch 1.9 has on.
FITTED = {"host_link": (5e9, 26e9), "flops": (10e12, 156e12)}


def fit(hardware: Hardware) -> Hardware:
    """The profile whose logarithms of predicted over published times of the other half are smallest, by squares."""
    from scipy.optimize import least_squares

    def profile(logarithms: np.ndarray) -> Hardware:
        return replace(hardware, **dict(zip(FITTED, np.exp(logarithms).tolist(), strict=True)))

    known = [epoch for epoch in epochs() if not held_out(epoch)]
    lowest, highest = np.log(np.array(list(FITTED.values()))).T
    found = least_squares(
        lambda x: [np.log(predict_epoch(epoch, profile(x)).total / epoch.seconds) for epoch in known],
        (lowest + highest) / 2,
        bounds=(lowest, highest),
    )
    return profile(found.x)


def main() -> None:
    from hongtu.hardware import A100X4

    fitted = fit(A100X4)
    print("fitted:", ", ".join(f"{name} {getattr(fitted, name):.3g}" for name in FITTED))
    for name, hardware in (("fitted", fitted), ("a100x4", A100X4)):
        for title, half in (("fitted half", False), ("held-out half", True)):
            found = errors(hardware, of_held_out=half)
            print(f"{name}, {title}: {len(found)} times, error {np.median(found):.0%} median, {found[-1]:.0%} at most")
    for epoch in epochs():
        s = predict_epoch(epoch, A100X4)
        print(
            f"{'held out' if held_out(epoch) else 'fitted':9}{epoch.table:8} {epoch.graph:16} {epoch.model} "
            f"{epoch.layers} {epoch.strategy:6}{epoch.seconds:6.1f} s, predicted {s.total:6.1f} s "
            f"({s.total / epoch.seconds - 1:+.0%})"
        )
    for graph in LARGE:
        for model in ("gcn", "gat"):
            for layers in (2, 3, 4):
                seconds, part = predict_full(graph, model, layers, A100X4)
                print(f"full {graph} {model} {layers}: {seconds.total:.2f} s, {part:.0%} on the devices")


if __name__ == "__main__":
    main()
