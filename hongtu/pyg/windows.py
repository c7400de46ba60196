"""Batches on ranks: the features that a window of steps reads of other ranks are fetched once, ahead of time.

A rank owns consecutive partitions: it samples for their vertices, and gives others their features. Which vertices a
step reads follows from the seed, so a window of steps is sampled while the one before trains, and what it needs of
others comes in one message from each. Rows stay as long as there is room.
Legend: V vertices, F features, k ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hongtu.errors import InputError
from hongtu.nn.dropout import dropout_key, hashes
from hongtu.pyg.draw import Drawn, part_of
from hongtu.pyg.stores import NeighborSampler, feature_rows
from hongtu.ranks.group import Ranks
from hongtu.ranks.share import deal_partitions
from hongtu.ranks.together import Alone, Together

_STEP, _ORDER = 0, 1  # what random numbers are for


@dataclass(frozen=True, eq=False)
class Step:
    """One step of all ranks.

    Attributes:
        key: of what is drawn in it.
        seeds: int64 [B], original numbers.
    """

    key: int
    seeds: np.ndarray


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of any epoch.

    Attributes:
        vertices: int64 [N], original numbers.
        partition: int64 [N], the partition of each.
        size: vertices per step.
        shuffle: another order in every epoch, in which each stretch has its part of every partition; else as they are.
        seed: of the random numbers.
        drop_last: leave out a last step that is smaller.
    """

    vertices: np.ndarray
    partition: np.ndarray
    size: int
    shuffle: bool
    seed: int
    drop_last: bool = False

    def __len__(self) -> int:
        return len(self.vertices) // self.size if self.drop_last else -(-len(self.vertices) // self.size)

    def of(self, epoch: int) -> Iterator[Step]:
        """All of them, in sequence."""
        order = self._order(epoch) if self.shuffle else np.arange(len(self.vertices))
        for number in range(len(self)):
            seeds = self.vertices[order[number * self.size : (number + 1) * self.size]]
            yield Step(dropout_key(self.seed, _STEP, epoch, number), seeds)

    def _order(self, epoch: int) -> np.ndarray:
        """int64 [N]: at random inside a partition; partitions take turns in proportion to their vertices, so that the
        parts of a step that ranks own are as large in every step."""
        drawn = hashes(self.vertices, 1, dropout_key(self.seed, _ORDER, epoch)).view(np.int64)[:, 0]
        inside = np.lexsort((drawn, self.partition))
        count = np.bincount(self.partition)
        first = np.cumsum(count) - count
        turn = np.arange(len(inside)) - np.repeat(first, count)
        late = hashes(np.arange(len(count)), 1, dropout_key(self.seed, _ORDER, epoch, 1)).view(np.int64)[:, 0]
        late = (late.view(np.uint64) >> np.uint64(11)) * 2.0**-53
        return inside[np.argsort((turn + np.repeat(late, count)) / np.repeat(count, count), kind="stable")]


class RowCache:
    """What the last window read, and as much of what earlier ones read as there is room for: those that were read last.

    Args:
        capacity: rows; a window may have more.

    Attributes:
        vertices: int64 [R], ascending.
        rows: float32 [R, F].

    >>> cache, asked = RowCache(4, 1), []
    >>> def fetch(vertices):
    ...     asked.append(vertices.tolist())
    ...     return torch.from_numpy(vertices).float()[:, None]
    >>> [cache.take(np.array(window), fetch)[:, 0].tolist() for window in ([1, 2, 3], [2, 9], [3, 5, 9], [1, 2, 3])][3]
    [1.0, 2.0, 3.0]
    >>> asked, cache.vertices.tolist()
    ([[1, 2, 3], [9], [5], [1]], [1, 2, 3, 5])
    """

    def __init__(self, capacity: int, width: int) -> None:
        self.capacity = capacity
        self.vertices = np.empty(0, dtype=np.int64)
        self.rows = torch.empty(0, width, dtype=torch.float32)
        self._read = np.empty(0, dtype=np.int64)  # the window that read each last
        self._window = 0

    def take(self, vertices: np.ndarray, fetch: Callable[[np.ndarray], Tensor]) -> Tensor:
        """float32 [R, F], the rows of a window.

        Args:
            vertices: int64 [R], ascending.
            fetch: gets those that are not there.
        """
        at = np.searchsorted(self.vertices, vertices)
        there = at < len(self.vertices)
        there[there] = self.vertices[at[there]] == vertices[there]
        rows = torch.empty(len(vertices), self.rows.shape[1], dtype=torch.float32)
        rows[torch.from_numpy(there)] = self.rows[at[there]]
        rows[torch.from_numpy(~there)] = fetch(vertices[~there])
        self._keep(vertices, rows, np.delete(np.arange(len(self.vertices)), at[there]))
        return rows

    def _keep(self, vertices: np.ndarray, rows: Tensor, others: np.ndarray) -> None:
        """Hold a window's rows, and of the ``others`` those that were read last."""
        self._window += 1
        room = max(0, self.capacity - len(vertices))
        others = others[np.argsort(-self._read[others], kind="stable")[:room]]
        together = np.concatenate([vertices, self.vertices[others]])
        read = np.concatenate([np.full(len(vertices), self._window), self._read[others]])
        order = np.argsort(together)
        self.rows = torch.cat([rows, self.rows[others]])[order]
        self.vertices, self._read = together[order], read[order]


def group_of_its_own() -> Together:
    """All processes, in a gloo group beside theirs: windows are exchanged while gradients are."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Ranks(dist.new_group(backend="gloo"))
    return Alone()


@dataclass(frozen=True, eq=False)
class Window:
    """Sampled steps, and the rows of other ranks that they read.

    Attributes:
        batches: what was drawn for each step, and the part of its seeds that are this rank's, times k.
        vertices: int64 [R], ascending: those of other ranks.
        rows: float32 [R, F].
    """

    batches: list[tuple[Drawn, float]]
    vertices: np.ndarray
    rows: Tensor


class Windows:
    """Gives a rank its batches, window by window.

    Args:
        ranks: all must do the same; a group that nobody else uses.
        size: steps of a window.
        cache_bytes: of other ranks' features that stay, beside those of the window.

    Attributes:
        bytes_fetched: of features that came from other ranks.
        bytes_alone: that would have come if each step had fetched what it reads.

    Raises:
        InputError: when there are more ranks than partitions.
    """

    def __init__(self, sampler: NeighborSampler, ranks: Together, size: int, cache_bytes: int) -> None:
        artifact = sampler.graph.artifact
        bounds = deal_partitions(artifact, ranks.size)
        self.starts = artifact.topology.partition_start[bounds]  # int64 [k + 1], first vertex of every rank, then V
        self.sampler, self.ranks, self.size = sampler, ranks, size
        self.bytes_fetched = self.bytes_alone = 0
        self.width = 0 if artifact.learns_features else artifact.feature_width
        self.cache = RowCache(cache_bytes // max(4 * self.width, 1), self.width)

    def batches(self, steps: list[Step]) -> Iterator[tuple[Drawn, Tensor, float]]:
        """What is drawn for every step, the features of its vertices, and the part of its seeds that are this rank's
        times k. The next window is on its way meanwhile.

        Raises:
            InputError: on every rank, for a step in which some rank has no seed.
            RankLost: when another rank has stopped.
        """
        self._check(steps)
        windows = [steps[first : first + self.size] for first in range(0, len(steps), self.size)]
        if not windows:
            return
        with ThreadPoolExecutor(1, "hongtu window") as pool:
            ahead: Future[Window] | None = pool.submit(self._window, windows[0])
            for following in itertools.chain(windows[1:], [None]):
                assert ahead is not None
                window = ahead.result()
                ahead = None if following is None else pool.submit(self._window, following)
                for drawn, weight in window.batches:
                    yield drawn, self._features(window, drawn.vertices), weight

    def owner(self, vertices: np.ndarray) -> np.ndarray:
        """int64, the rank of each of the artifact's vertices."""
        return np.searchsorted(self.starts, vertices, side="right") - 1

    def _check(self, steps: list[Step]) -> None:
        for number, step in enumerate(steps, 1):
            count = np.bincount(self.owner(self.sampler.graph.new_id[step.seeds]), minlength=self.ranks.size)
            if not count.all():
                raise InputError(
                    f"rank {count.argmin()} owns none of the {len(step.seeds)} seeds of step {number}; take a larger "
                    "batch_size, drop_last=True, shuffle=True or fewer ranks"
                )

    def _window(self, steps: list[Step]) -> Window:
        batches, read = [], []
        for step in steps:
            mine = self.owner(self.sampler.graph.new_id[step.seeds]) == self.ranks.rank
            drawn = self._drawn(step, mine)
            batches.append((drawn, self.ranks.size * float(mine.mean())))
            read.append(drawn.vertices[self.owner(drawn.vertices) != self.ranks.rank])
            self.bytes_alone += len(read[-1]) * self.width * 4
        vertices = np.unique(np.concatenate(read))
        return Window(batches, vertices, self.cache.take(vertices, self._fetch))

    def _drawn(self, step: Step, mine: np.ndarray) -> Drawn:
        """For some of a step's seeds. Where hops have fan-outs of their own, a vertex has that of the hop in which the
        whole step meets it first, so this is drawn."""
        if len(set(self.sampler.fanouts)) == 1:
            return self.sampler.sample(step.seeds[mine], step.key)
        return part_of(self.sampler.sample(step.seeds, step.key), mine)

    def _fetch(self, vertices: np.ndarray) -> Tensor:
        """float32 [R, F], from their owners: who asks for how many, for which, and these."""
        with self.ranks.call("a window of NeighborLoader"):
            return self._fetched(vertices)

    def _fetched(self, vertices: np.ndarray) -> Tensor:
        cuts = np.searchsorted(vertices, self.starts)
        wanted = [torch.from_numpy(vertices[low:high]) for low, high in itertools.pairwise(cuts)]
        asked = [counts[self.ranks.rank] for counts in self.ranks.gather([len(ids) for ids in wanted])]
        most = int(self.starts[self.ranks.rank + 1] - self.starts[self.ranks.rank])
        if not all(isinstance(count, int) and 0 <= count <= most for count in asked):
            raise InputError(f"other ranks ask for {asked} of this rank's {most} vertices; expected at most as many")
        theirs = [torch.empty(count, dtype=torch.int64) for count in asked]
        self.ranks.exchange(wanted, theirs)
        given = [self._own(ids.numpy()) for ids in theirs]
        came = [torch.empty(len(ids), self.width, dtype=torch.float32) for ids in wanted]
        self.ranks.exchange(given, came)
        self.bytes_fetched += sum(rows.nbytes for rows in came)
        return torch.cat(came)

    def _features(self, window: Window, vertices: np.ndarray) -> Tensor:
        """float32 [N, F]."""
        own = self.owner(vertices) == self.ranks.rank
        rows = torch.empty(len(vertices), self.width, dtype=torch.float32)
        rows[torch.from_numpy(own)] = self._own(vertices[own])
        rows[torch.from_numpy(~own)] = window.rows[np.searchsorted(window.vertices, vertices[~own])]
        return rows

    def _own(self, vertices: np.ndarray) -> Tensor:
        assert (self.owner(vertices) == self.ranks.rank).all()
        artifact = self.sampler.graph.artifact
        return feature_rows(artifact, vertices) if self.width else torch.empty(len(vertices), 0, dtype=torch.float32)
