"""``hongtu plan --vertices N --edges E ...``: the plan of a graph of which only counts are known.

What moves depends on which vertices are neighbours, so the planner runs on small graphs of three kinds, with as many
edges and chunks a vertex, in memories that are as much smaller; what it finds is as many times larger. Citation and
R-MAT graphs need many rows of other chunks, pages of the web few: what a real graph takes lies between them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hongtu.cli.train_config import ModelConfig
from hongtu.config import PreprocessConfig, in_bytes, parse_bytes
from hongtu.errors import BudgetError, InputError, nearest

if TYPE_CHECKING:
    from hongtu.graph.artifact import Artifact
    from hongtu.hardware import Hardware
    from hongtu.plan.execution import ExecutionPlan

EDGES, ROWS = 250_000, 24  # of a small graph at most, and vertices of its chunks at least
# where a vertex's in-edges do not fit, it has one in so many of V at most, or so many times the mean
HUB, OFTEN = 500, 8
NAMES = ("vertices", "edges", "features", "classes")


@dataclass(frozen=True)
class GraphCounts:
    """Of a graph: vertices, stored edges, columns of the features, classes, and the share of train vertices."""

    vertices: int
    edges: int
    features: int
    classes: int
    train: float = 0.6


LIKE = {  # as published; ogbn-products with both directions of its edges
    "ogbn-arxiv": GraphCounts(169_343, 1_166_243, 128, 40, 0.537),
    "ogbn-products": GraphCounts(2_449_029, 123_718_280, 100, 47, 0.080),
    "ogbn-papers100M": GraphCounts(111_059_956, 1_615_685_872, 128, 172, 0.011),
    "mag240m": GraphCounts(121_751_666, 1_297_748_926, 768, 153, 0.009),
    "igb-tiny": GraphCounts(100_000, 547_416, 1024, 19),
    "igb-small": GraphCounts(1_000_000, 12_070_502, 1024, 19),
    "igb-medium": GraphCounts(10_000_000, 120_077_694, 1024, 19),
    "igb-large": GraphCounts(100_000_000, 1_223_571_364, 1024, 19),
    "igb260m": GraphCounts(269_346_174, 3_995_777_033, 1024, 19, 0.506),
}


def add_counts(parser: argparse.ArgumentParser) -> None:
    """The options that stand for an artifact."""
    add = parser.add_argument
    for name in NAMES:
        add(f"--{name}", type=int, metavar="N", help=f"{name} of a graph that is not here, instead of an artifact")
    add("--like", metavar="NAME", help=f"the counts of {', '.join(LIKE)}")
    add("--train-share", type=float, metavar="X", help="of such a graph's vertices, those to train on (default: 0.6)")
    add("--partitions", type=int, metavar="M", help="of such a graph (default: the profile's devices)")


def read_counts(options: argparse.Namespace) -> GraphCounts | None:
    """The counts that were typed; None where there is an artifact.

    Raises:
        InputError: for some of them without the others, or numbers of no graph.
    """
    typed = {name: value for name in NAMES if (value := getattr(options, name)) is not None}
    if not typed and options.like is None:
        if options.partitions is not None or options.train_share is not None:
            raise InputError("--partitions, --train-share: an artifact has its own; leave them out")
        return None
    if options.source is not None:
        raise InputError(f"{options.source}: a graph that is here; leave --like and its counts out, or the artifact")
    if options.like is not None and options.like not in LIKE:
        raise InputError(f"--like {options.like!r}{nearest(options.like, LIKE)}; expected one of {', '.join(LIKE)}")
    missing = [f"--{name}" for name in NAMES if name not in typed]
    if options.like is None and missing:
        raise InputError(f"{', '.join(missing)}: missing; a plan from counts needs all four, or --like NAME")
    share = {} if options.train_share is None else {"train": options.train_share}
    counts = GraphCounts(**typed, **share) if options.like is None else replace(LIKE[options.like], **typed, **share)
    least = min(counts.features, counts.classes, counts.vertices, counts.edges, options.partitions or 1)
    if least < 1 or not 0 < counts.train <= 1 or counts.vertices >= 2**31:
        raise InputError(f"{counts}: expected positive numbers, fewer than {2**31} vertices, and a share up to 1")
    return counts


def small_graph(kind: str, counts: GraphCounts, partitions: int, folder: Path, *, hubs: bool = True) -> Artifact:
    """An artifact of a kind of generated graph with as many edges a vertex, of ``EDGES`` edges at most. Without
    ``hubs`` the in-edges that a vertex has too many of go to any others: in a small graph it has a larger share."""
    import numpy as np

    from hongtu.preprocess.entry import preprocess_graph
    from hongtu.preprocess.generate import KINDS

    vertices = max(min(counts.vertices, EDGES * counts.vertices // counts.edges), min(counts.vertices, 1000))
    edges = counts.edges * vertices // counts.vertices
    most = max(1, vertices // (partitions * ROWS))
    chunks = min(PreprocessConfig(partitions=partitions, chunks="auto").grain(counts.vertices)[1], most)
    rng = np.random.default_rng(0)
    found, _ = KINDS[kind](vertices, edges, counts.classes, rng)
    if not hubs:
        order = np.argsort(found[1], kind="stable")
        degree = np.bincount(found[1], minlength=vertices)
        rank = np.arange(edges) - np.repeat(np.cumsum(degree) - degree, degree)
        beyond = order[rank >= max(vertices // HUB, OFTEN * edges // vertices)]
        found[1, beyond] = rng.integers(0, vertices, len(beyond))
    train = np.zeros(vertices, bool)
    train[rng.permutation(vertices)[: max(1, round(counts.train * vertices))]] = True
    with contextlib.redirect_stderr(io.StringIO()):  # notes on a graph that is nobody's
        artifact = preprocess_graph(
            found, vertices, folder / kind, features="random:1", labels=f"random:{counts.classes}",
            masks={"train": train}, partitions=partitions, chunks=chunks,
        )  # fmt: skip
    artifact.feature_width = counts.features  # plans read no features
    return artifact


def smaller(hardware: Hardware, times: float) -> Hardware:
    """A machine on which a graph that is so many times smaller takes so many times less: fixed costs and caches are as
    much smaller, too."""
    fixed: dict[str, Any] = {
        name: value / times for name, value in vars(hardware).items() if name in ("chunk_seconds", "call_seconds")
    }
    caches: dict[str, Any] = {
        name: max(1, int(value / times))
        for name in ("cache", "largest_reused")
        if (value := getattr(hardware, name)) is not None
    }
    return replace(hardware, **fixed, **caches)


def describe_counts(
    counts: GraphCounts, config: ModelConfig, hardware: Hardware, partitions: int, plan: Callable[..., ExecutionPlan]
) -> dict[str, Any]:
    """Everything that ``hongtu plan --vertices ... --json`` prints.

    Args:
        plan: plans the model on an artifact, with ``hardware``, ``device_memory`` and ``host_memory``.
    """
    from hongtu.plan.cost.seconds import predict_seconds
    from hongtu.plan.search.host import PROCESS, HostLimit, HostTooSmall
    from hongtu.preprocess.generate import KINDS

    given = hardware.memory_for(partitions) if config.device_memory is None else config.device_memory
    share = given if isinstance(given, str) and given.endswith("%") else None  # of what no limit would take
    budget = None if share is not None or given is None else parse_bytes(str(given), "device_memory")
    host = None if config.host_memory is None else parse_bytes(config.host_memory, "host_memory")

    def described(kind: str, *, hubs: bool) -> dict[str, Any] | None:
        """What is printed of one kind of graph; None where its hubs do not fit."""
        with tempfile.TemporaryDirectory() as folder:
            artifact = small_graph(kind, counts, partitions, Path(folder), hubs=hubs)
            times = counts.vertices / artifact.num_vertices
            machine = smaller(hardware, times)
            found = plan(artifact, hardware=machine, device_memory=None, host_memory=None, spill=False)
            model = found.shape.model_bytes  # on every device, whatever the graph
            room = None if budget is None else model + max(0, int((budget - model) / times))
            most = 2 * max(found.device_bytes.values())  # with what layers take
            fits = share is None and (room is None or most <= room)

            def larger(name: str, nbytes: int, tables: int) -> int:
                """What a memory of the graph itself holds; some of it is the same in both."""
                same = model if name.startswith("device") else tables * (name == "pageable host")
                return round(same + (nbytes - same) * times)

            limit = None
            if host is not None:
                same, on_host = PROCESS + model * partitions, not hardware.staged
                held = same + max(0, int((host - same) / times))
                limit = HostLimit(memory=held, spills=config.spill is not None, has_devices=on_host, tables=False)
            try:
                if not fits or host is not None:
                    found = plan(artifact, hardware=machine, device_memory=share or room, host_memory=limit)
            except BudgetError as error:
                if hubs:
                    return None
                least = round(model + (error.smallest - model) * times)
                raise BudgetError(
                    f"device_memory is {config.device_memory}: a graph of these counts that is like {kind} takes about "
                    f"{in_bytes(least)}; give more, or more --partitions", least,
                ) from None  # fmt: skip
            except HostTooSmall as error:
                takes = {name: larger(name, nbytes, error.tables) for name, nbytes in error.held.items()}
                remedy = f"{error.remedy}; about, of a graph of these counts that is like {kind}"
                assert host is not None
                raise HostTooSmall(host, takes, error.tables, remedy) from None
            return {
                "vertices": artifact.num_vertices,
                "chunks": artifact.topology.chunks,
                "replication_factor": artifact.manifest["alpha"],
                "hubs": hubs,
                "rows": {link: round(rows * times) for link, rows in found.rows.items()},
                "bytes": {link: round(nbytes * times) for link, nbytes in found.bytes.items()},
                "peak_bytes": {
                    name: larger(name, nbytes, found.disk.tables) for name, nbytes in found.peak_bytes.items()
                },
                "setup_bytes": {link: round(nbytes * times) for link, nbytes in found.setup_traffic.bytes.items()},
                "seconds_per_epoch": predict_seconds(found, machine).total * times,
            }

    kinds = {kind: described(kind, hubs=True) or described(kind, hubs=False) for kind in KINDS}
    return {
        "graph": config.artifact, **vars(counts), "partitions": partitions, "hardware": hardware.name,
        "device_memory": share or budget, "host_memory": host, "strategy": config.strategy, "kinds": kinds,
    }  # fmt: skip
