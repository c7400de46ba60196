"""How much memory preprocessing will take, before it does.

Legend: V vertices, E edges that are stored (with ``--undirected`` up to twice those given).
"""

from __future__ import annotations

from hongtu.compiled import AT_ONCE
from hongtu.config import parse_bytes
from hongtu.errors import InputError

PER_EDGE, PER_VERTEX = 24, 64  # bytes, in any stage, beside what a partitioner takes itself
LEAN = 8  # bytes per edge where nothing but the edges' own counting sort holds them
PLAIN = 160  # bytes per edge of plain forms of kernels, which graphs of at most ``AT_ONCE`` edges may run
INTERPRETER = 300 << 20  # Python, its libraries and the copy buffers
# bytes per edge of those that hold the graph themselves
OWN = {"metis": 170, "metis-balanced": 170, "recursive": 170, "kaminpar": 50}


def predicted_peak(
    num_vertices: int, num_edges: int, partitioner: str, orders: list[str], *, lean: bool = False, labels: int = 0
) -> int:
    """A bound on the anonymous memory of a run, in bytes; what is mapped from files comes on top and gives way.

    Args:
        partitioner: a name of the registry; "" where there is one partition.
        orders: the orders that are tried.
        lean: edges have nothing beside them, and go one way.
        labels: their bytes, which are put in another order as a whole.

    >>> predicted_peak(7_000_000, 100_000_000, "streaming", ["input"]) >> 20
    3016
    """
    own = max(OWN.get(name, 0) for name in (partitioner, *orders))
    per_edge = own + (LEAN if lean and orders == ["input"] else PER_EDGE)
    per_edge = max(per_edge, PLAIN) if num_edges <= AT_ONCE else per_edge
    return INTERPRETER + max(PER_VERTEX * num_vertices, labels) + per_edge * num_edges


def room_for_blocks(memory: str | None, num_vertices: int) -> int | None:
    """Bytes of a limit that are left for blocks of rows; None without one.

    >>> room_for_blocks("1GiB", 1_000_000) >> 20
    662
    """
    return None if memory is None else parse_bytes(memory, "memory") - INTERPRETER - PER_VERTEX * num_vertices


def check_limit(memory: str | None, predicted: int, smallest: int) -> None:
    """Refuse a run that could take more than it may."""
    if memory is not None and predicted > parse_bytes(memory, "memory"):
        less = f", or pass --partitioner streaming --order input, which takes {smallest}" * (smallest < predicted)
        raise InputError(f"memory is {memory}, preprocessing takes up to {predicted} bytes; give more{less}")


def advice(predicted: int, available: int | None, smallest: int) -> str:
    """What to tell a user whose machine is too small for the run; empty where it is not.

    >>> advice(5 << 30, 4 << 30, 3 << 30)
    'the run may take 5.0 GiB of memory, 4.0 GiB are available; --partitioner streaming --order input takes 3.0 GiB'
    >>> advice(5 << 30, 8 << 30, 3 << 30)
    ''
    """
    if available is None or predicted <= available:
        return ""
    sizes = [f"{size / 2**30:.1f} GiB" for size in (predicted, available, smallest)]
    less = f"; --partitioner streaming --order input takes {sizes[2]}" if smallest < predicted else ""
    return f"the run may take {sizes[0]} of memory, {sizes[1]} are available{less}"
