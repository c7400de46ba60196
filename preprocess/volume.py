"""The paper's communication volumes of a schedule, in rows per pass (HongTu, section 5 and Equation 4).

Legend: N_ij neighbour set of chunk (i, j), T_k union of the neighbour sets of batch k, all in stored edges only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hongtu.compiled import compiled
from hongtu.graph.distinct import distinct
from hongtu.preprocess.vertex_blocks import BITS, block_cuts


class Volume(NamedTuple):
    """Rows moved in one pass.

    Attributes:
        v_ori: every chunk brings its whole neighbour set: sum |N_ij|.
        v_p2p: a batch brings each row once and peers share it: sum |T_k|.
        v_ru: and rows of the batch before stay: sum |T_k minus T_k-1|.
        pulled: rows our merged buffer takes from peers: sum |(N_ij minus partition i) minus N_i,j-1|.
    """

    v_ori: int
    v_p2p: int
    v_ru: int
    pulled: int


def count_volume(
    source_start: np.ndarray, sources: np.ndarray, partition_start: np.ndarray, schedule: np.ndarray
) -> Volume:
    """Volumes of ``schedule`` (int32 [m, n], chunk of partition i that runs in batch k).

    >>> # m = 2, n = 2, partitions {0, 1} and {2}; N_00 = {0}, N_01 = {1, 2}, N_10 = {1, 2}, N_11 = {0}
    >>> start, sources = np.array([0, 1, 3, 5, 6]), np.int32([0, 1, 2, 1, 2, 0])
    >>> count_volume(start, sources, np.array([0, 2, 3]), np.int32([[0, 1], [0, 1]]))
    Volume(v_ori=6, v_p2p=6, v_ru=3, pulled=3)
    >>> count_volume(start, sources, np.array([0, 2, 3]), np.int32([[0, 1], [1, 0]]))
    Volume(v_ori=6, v_p2p=3, v_ru=3, pulled=3)
    """
    cuts = block_cuts(source_start, sources, int(partition_start[-1]))
    counts = np.zeros((cuts.shape[1] - 1, 3), dtype=np.int64)
    _count.each(len(counts), cuts, sources, np.asarray(partition_start), schedule, counts)
    v_p2p, v_ru, pulled = counts.sum(axis=0)
    return Volume(v_ori=len(sources), v_p2p=int(v_p2p), v_ru=int(v_ru), pulled=int(pulled))


def _plain_count(cuts, sources, partition_start, schedule, counts):
    partitions, chunks = schedule.shape
    sets = [sources[lo:hi] for lo, hi in zip(cuts[:, 0].tolist(), cuts[:, -1].tolist(), strict=True)]
    batch, mirrored = sources[:0], [sources[:0]] * partitions  # of the batch before
    for k in range(chunks):
        own = [sets[i * chunks + schedule[i, k]] for i in range(partitions)]
        needed = distinct(np.concatenate(own))
        counts[0, :2] += len(needed), len(np.setdiff1d(needed, batch, assume_unique=True))
        batch = needed
        for i, rows in enumerate(own):
            others = rows[(rows < partition_start[i]) | (rows >= partition_start[i + 1])]
            counts[0, 2] += len(np.setdiff1d(others, mirrored[i], assume_unique=True))
            mirrored[i] = others


@compiled(plain=_plain_count)
def _count(block, cuts, sources, partition_start, schedule, counts):
    (partitions, chunks), base = schedule.shape, block << BITS
    latest = np.empty(1 << BITS, dtype=np.int32)  # the latest batch whose T has the vertex
    for v in range(len(latest)):
        latest[v] = -2
    for k in range(chunks):
        for i in range(partitions):
            c = i * chunks + schedule[i, k]
            for s in range(cuts[c, block], cuts[c, block + 1]):
                before = latest[sources[s] - base]
                if before != k:
                    counts[block, 0] += 1
                    counts[block, 1] += before != k - 1
                    latest[sources[s] - base] = k
    for i in range(partitions):
        for v in range(len(latest)):  # the latest batch that reads it on device i
            latest[v] = -2
        for k in range(chunks):
            c = i * chunks + schedule[i, k]
            for s in range(cuts[c, block], cuts[c, block + 1]):
                v = sources[s]
                if v < partition_start[i] or v >= partition_start[i + 1]:
                    counts[block, 2] += latest[v - base] != k - 1
                    latest[v - base] = k
