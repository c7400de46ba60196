"""Rows loaded from the host per pass, against the paper's plan, in the same device buffer.

    python -m experiments.rows_loaded GRAPH... [--undirected] [--out experiments/results/rows_loaded.jsonl]

For each graph and (m, n) in {(1, 32), (4, 32)}: the paper's plan (the better of with and without Algorithm 4) on METIS
partitions in input order, and lookahead plans at 1 to 16 times n steps in the order that ``--order auto`` picks, with
the slots per device that the paper's plan takes. Equation 4's cost decides, per hardware profile, which of them runs.
All rows are over |V|; the plans are the ones that training runs.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from experiments.options import make_parser
from hongtu.bench.records import append, machine
from hongtu.errors import BudgetError
from hongtu.graph.topology import Topology, build_topology
from hongtu.hardware import Hardware, load_hardware
from hongtu.plan.cache.transfer import TransferPlan, plan_transfers
from hongtu.preprocess import csc, order, partition, reorganize
from hongtu.preprocess.csc import coalesce

PAPER_CHUNKS = 32
FINER = (1, 2, 4, 8, 16)
PARTS, DEVICES = (2, 4, 8, 16, 32, 64, 128, 256, 512), 4  # of the paper's Tables 3 and 8
PROFILES = {name: load_hardware(name) for name in ("a100x4", "h200", "cpu")}


def main() -> None:
    parser = make_parser(__doc__, devices=[1, 4], seed=0)
    parser.add_argument("graphs", nargs="+", type=Path, help="directories with edges.npy")
    parser.add_argument("--undirected", action="store_true")
    options = parser.parse_args()
    for path in options.graphs:
        graph = read(path, options.undirected)
        for m in options.devices:
            case = {"graph": path.name, "undirected": options.undirected, "m": m, "n": PAPER_CHUNKS}
            row = machine("rows_loaded") | case | measure(graph, m, options.seed)
            print(table(row), flush=True)
            append(options.out, row)


def read(path: Path, undirected: bool) -> csc.Csc:
    edges = np.load(path / "edges.npy", mmap_mode="r")
    meta = path / "meta.json"
    nodes = json.loads(meta.read_text()).get("nodes") if meta.exists() else None
    num_vertices = int(edges.max()) + 1 if nodes is None else nodes
    graph = csc.build_csc(edges[0], edges[1], num_vertices, undirected=undirected)
    return csc.Csc(*coalesce(*graph)[:2]) if undirected else graph


def measure(graph: csc.Csc, m: int, seed: int) -> dict:
    """Rows over |V| of the paper's and of our plans for one graph and number of devices."""
    v = len(graph.in_edge_start) - 1
    edges = (graph.in_edge_start, graph.source)
    start = time.perf_counter()
    part = partitioned(graph, m, seed)
    partition_seconds = time.perf_counter() - start
    plain = topology(graph, *order.order_vertices("input", *edges, part, m, PAPER_CHUNKS, seed)[:2], m)
    paper = min(paper_plans(plain, m), key=lambda plan: plan.rows_loaded)
    slots = [device.capacity for device in paper.devices]
    row = {
        "vertices": v,
        "edges": len(graph.source),
        "floor": len(np.unique(plain.sources)) / v,
        "paper": paper.rows_loaded / v,
        "paper_pulled": paper.rows_pulled / v,
        "slots": [s / v for s in slots],
        "partition_seconds": partition_seconds,
    }
    start = time.perf_counter()
    finest = max(FINER) * PAPER_CHUNKS
    original_id, chunk_start, counted = order.order_vertices("auto", *edges, part, m, finest, seed)
    chunks = topology(graph, original_id, chunk_start, m)
    row |= {"order": next(iter(counted)), "order_seconds": time.perf_counter() - start}
    fits = {}
    for finer in FINER:
        fits |= lookahead(chunks.grouped(max(FINER) // finer), finer, slots)
    row["plans"] = {f"{finer}n": [plan["rows"], plan["pulled"]] for (finer, _), plan in fits.items()}
    row["chosen"] = {name: cheapest(hardware, fits, row) for name, hardware in PROFILES.items()}
    return row


def lookahead(chunks: Topology, finer: int, slots: list[int]) -> dict[tuple[int, float], dict]:
    """Our plans at ``finer`` times the paper's steps in the same slots, for each profile's cost of a peer's row."""
    v, m, steps = chunks.num_vertices, chunks.partitions, chunks.chunks
    plans = {}
    for peer_cost in {hardware.peer_cost for hardware in PROFILES.values()} if m > 1 else {0.0}:
        start = time.perf_counter()
        try:
            plan = plan_transfers(chunks, input_schedule(m, steps), "lookahead", slots, peer_cost=peer_cost)
        except BudgetError:  # one step needs more than the paper's buffer
            return {}
        seconds = time.perf_counter() - start
        plans[finer, peer_cost] = {
            "steps": f"{finer}n",
            "rows": plan.rows_loaded / v,
            "pulled": plan.rows_pulled / v,
            "seconds": seconds,
            "seconds_per_10M_requests": seconds / max(len(chunks.sources), 1) * 1e7,
        }
    return plans


def cheapest(hardware: Hardware, plans: dict[tuple[int, float], dict], paper: dict) -> dict:
    """The plan with the least cost on a machine; the paper's own is always a candidate."""
    own = {"steps": "paper", "rows": paper["paper"], "pulled": paper["paper_pulled"], "seconds": 0.0}
    best = min((own, *plans.values()), key=lambda plan: link_cost(hardware, plan["rows"], plan["pulled"]))
    return best | {
        "rows_ratio": best["rows"] / paper["paper"],
        "cost_ratio": link_cost(hardware, best["rows"], best["pulled"])
        / link_cost(hardware, paper["paper"], paper["paper_pulled"]),
        "planning_share": best["seconds"] / (paper["partition_seconds"] + paper["order_seconds"]),
    }


def link_cost(hardware: Hardware, loaded: float, pulled: float) -> float:
    """Equation 4 for what a plan really moves, per row: rows that stay where they are cost nothing here, as in-place
    reuse does."""
    return loaded / hardware.host_link + pulled / hardware.peer_link


def topology(graph: csc.Csc, original_id: np.ndarray, chunk_start: np.ndarray, m: int) -> Topology:
    renumbered = csc.renumber(graph, original_id)
    return build_topology(m, chunk_start, renumbered.in_edge_start, renumbered.source)


def input_schedule(m: int, steps: int) -> np.ndarray:
    return np.tile(np.arange(steps, dtype=np.int32), (m, 1))


def paper_plans(chunks: Topology, m: int) -> list[TransferPlan]:
    algorithm_4 = reorganize.reorganize(chunks.source_start, chunks.sources, m, chunks.num_vertices)
    schedules = (input_schedule(m, PAPER_CHUNKS), algorithm_4)
    return [plan_transfers(chunks, schedule, "paper") for schedule in schedules]


def replication(graph: csc.Csc, seed: int) -> dict[int, float]:
    """Table 3, alpha for each number of chunks, in two levels: METIS partitions, one for each of ``DEVICES`` devices or
    of fewer where there are fewer chunks, then chunks of them; at m n chunks it is Table 8's V_ori."""
    alphas = {}
    for parts in PARTS:
        devices = min(parts, DEVICES)
        chunks = chunked(graph, devices, parts // devices, seed)
        alphas[parts] = len(chunks.sources) / chunks.num_vertices
    return alphas


def duplicates(graph: csc.Csc, seed: int) -> dict[str, dict[str, float]]:
    """Table 8: V_ori over |V| and the shares of it that deduplication removes, by schedule: between devices (V_ori -
    V_+p2p) and between adjacent batches (V_+p2p - V_+ru)."""
    chunks = chunked(graph, DEVICES, PAPER_CHUNKS, seed)
    sets = (chunks.source_start, chunks.sources)
    schedules = {
        "input": input_schedule(DEVICES, PAPER_CHUNKS),
        "Algorithm 4": reorganize.reorganize(*sets, DEVICES, chunks.num_vertices),
    }
    shares = {}
    for name, schedule in schedules.items():
        counted = reorganize.count_volume(*sets, chunks.partition_start, schedule)
        shares[name] = {
            "v_ori": counted.v_ori / chunks.num_vertices,
            "between_devices": (counted.v_ori - counted.v_p2p) / counted.v_ori,
            "between_batches": (counted.v_p2p - counted.v_ru) / counted.v_ori,
        }
    return shares


def partitioned(graph: csc.Csc, m: int, seed: int) -> np.ndarray:
    everyone = np.ones(len(graph.in_edge_start) - 1, dtype=bool)
    return partition.partition_vertices("metis", *graph, m, train_mask=everyone, seed=seed)


def chunked(graph: csc.Csc, m: int, n: int, seed: int) -> Topology:
    return topology(graph, *order.order_vertices("input", *graph, partitioned(graph, m, seed), m, n, seed)[:2], m)


def table(row: dict) -> str:
    lines = [
        f"{row['graph']}{' undirected' if row['undirected'] else ''}, m = {row['m']}, n = {row['n']}: "
        f"floor {row['floor']:.2f}  paper {row['paper']:.2f} (pulled {row['paper_pulled']:.2f})  order {row['order']}"
    ]
    for name, plan in row["chosen"].items():
        lines.append(
            f"  {name:7s} {plan['steps']:>5s}  {plan['rows']:.2f} = {plan['rows_ratio']:.2f}x  "
            f"(pulled {plan['pulled']:.2f})  cost {plan['cost_ratio']:.2f}x  "
            f"planning {plan.get('seconds_per_10M_requests', 0):.2f} s per 10M requests, "
            f"{plan['planning_share']:.1%} of partition and order"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
