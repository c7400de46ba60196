"""The paper's communication volumes of a schedule, in rows per pass (HongTu, section 5 and Equation 4).

Legend: N_ij neighbour set of chunk (i, j), T_k union of the neighbour sets of batch k, all in stored edges only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


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
    partitions, chunks = schedule.shape
    latest = np.full(partition_start[-1], -2, dtype=np.int32)  # the latest batch whose T has the vertex
    v_p2p = v_ru = pulled = 0
    for k in range(chunks):
        for i in range(partitions):
            rows = _neighbour_set(source_start, sources, i * chunks + schedule[i, k])
            before = latest[rows]
            v_p2p += np.count_nonzero(before != k)
            v_ru += np.count_nonzero(before < k - 1)
            latest[rows] = k
    for i in range(partitions):
        latest[:] = -2  # the latest batch that reads it on device i
        for k in range(chunks):
            rows = _neighbour_set(source_start, sources, i * chunks + schedule[i, k])
            rows = rows[(rows < partition_start[i]) | (rows >= partition_start[i + 1])]
            pulled += np.count_nonzero(latest[rows] != k - 1)
            latest[rows] = k
    return Volume(v_ori=len(sources), v_p2p=int(v_p2p), v_ru=int(v_ru), pulled=int(pulled))


def _neighbour_set(source_start: np.ndarray, sources: np.ndarray, chunk: int) -> np.ndarray:
    return sources[source_start[chunk] : source_start[chunk + 1]]
