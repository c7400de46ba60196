"""Sampled mini-batches of an artifact in one line, as torch_geometric's NeighborLoader gives them."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torch_geometric.data import Data, HeteroData

from hongtu.config import parse_bytes
from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.pyg.draw import Drawn
from hongtu.pyg.stores import Fanouts, NeighborSampler, feature_rows, label_rows
from hongtu.pyg.windows import Step, Steps, Windows, group_of_its_own
from hongtu.ranks.likeness import likeness
from hongtu.ranks.together import Together

Batch: TypeAlias = Data | HeteroData
Vertices: TypeAlias = np.ndarray | torch.Tensor | Sequence[int]
Split: TypeAlias = str | Vertices | tuple[str, str | Vertices | None]


def batch_of(sampler: NeighborSampler, drawn: Drawn, x: Tensor | None) -> Batch:
    """What torch_geometric's models take.

    Args:
        x: float32 [N, F] of the batch's vertices, or None where features are learned.
    """
    artifact, size = sampler.graph.artifact, drawn.vertices_per_hop[0]
    if artifact.types is not None:
        return _by_type(sampler, drawn, x)
    n_id = torch.from_numpy(sampler.original(drawn))
    return Data(
        x=x,
        edge_index=torch.from_numpy(np.stack([drawn.source, drawn.destination])),
        n_id=n_id,
        e_id=torch.from_numpy(sampler.edge_ids(drawn)),
        input_id=n_id[:size],
        batch_size=size,
        loss_weight=1.0,
        num_nodes=len(drawn.vertices),
        num_sampled_nodes=drawn.vertices_per_hop,
        num_sampled_edges=drawn.edges_per_hop,
        **_known(sampler, drawn.vertices),
        **_of_edges(sampler, drawn.edge),
    )


def _by_type(sampler: NeighborSampler, drawn: Drawn, x: Tensor | None) -> HeteroData:
    """The vertices of each type and the edges of each relation, in the order in which they were drawn."""
    graph, types = sampler.graph, sampler.graph.artifact.types
    assert types is not None
    original = sampler.original(drawn)
    kind_N = np.searchsorted(types.starts, original, side="right") - 1
    place_N, id_N = np.empty_like(original), original - np.array(types.starts)[kind_N]
    batch = HeteroData(loss_weight=1.0)
    for kind, name in enumerate(types.names):
        mine, store = np.flatnonzero(kind_N == kind), batch[name]
        place_N[mine] = np.arange(len(mine))
        store.num_nodes, store.n_id = len(mine), torch.from_numpy(id_N[mine])
        store.num_sampled_nodes = _counted(mine, drawn.vertices_per_hop)
        if x is not None and types.widths[kind]:
            store.x = x[mine, types.first_column : types.first_column + types.widths[kind]]
        if name in graph.labelled:
            for known, rows in _known(sampler, drawn.vertices[mine]).items():
                store[known] = rows
    seeds = batch[types.names[kind_N[0]]]
    seeds.batch_size = drawn.vertices_per_hop[0]
    seeds.input_id = seeds.n_id[: seeds.batch_size]
    relation_D = np.asarray(graph.artifact.topology.edge_type)[drawn.edge]
    for relation, key in enumerate(types.relations):
        mine, store = np.flatnonzero(relation_D == relation), batch[key]
        source, destination, edge = drawn.source[mine], drawn.destination[mine], drawn.edge[mine]
        store.edge_index = torch.from_numpy(np.stack([place_N[source], place_N[destination]]))
        store.e_id = torch.from_numpy(edge + graph.relation_shift[relation][id_N[destination]])
        store.num_sampled_edges = _counted(mine, drawn.edges_per_hop)
        given, columns = _of_edges(sampler, edge), types.edge_columns[relation]
        if "edge_weight" in given:
            store.edge_weight = given["edge_weight"]
        if columns:
            store.edge_attr = given["edge_attr"][:, :columns]
    return batch


def _known(sampler: NeighborSampler, vertices: np.ndarray) -> dict[str, Tensor]:
    """Labels and masks of some of the artifact's vertices."""
    artifact = sampler.graph.artifact
    masks = {f"{split}_mask": np.asarray(mask)[vertices] for split, mask in artifact.masks.items()}
    return {"y": label_rows(artifact, vertices)} | {name: torch.from_numpy(mask) for name, mask in masks.items()}


def _of_edges(sampler: NeighborSampler, edges: np.ndarray) -> dict[str, Any]:
    """What the artifact has of some of its edges."""
    topology = sampler.graph.artifact.topology
    rows = {"edge_weight": topology.edge_weight, "edge_attr": topology.edge_features, "edge_type": topology.edge_type}
    return {name: torch.from_numpy(np.asarray(of)[edges]) for name, of in rows.items() if of is not None}


def _counted(positions: np.ndarray, per_hop: list[int]) -> list[int]:
    """How many of some ascending positions each hop has."""
    ends = np.searchsorted(positions, [*itertools.accumulate(per_hop, initial=0)])
    return np.diff(ends).tolist()


class NeighborLoader(DataLoader):
    """Batches of sampled neighbourhoods: approximate training, for when it is enough.

    The batches of an epoch follow from the seed and its number alone, whatever the number of workers. Each is a
    ``torch_geometric.data.Data`` with ``x``, ``y``, ``train_mask``, ``val_mask``, ``test_mask``, ``edge_index`` and
    what else the artifact has (``edge_weight``, ``edge_attr``, ``edge_type``), ``n_id`` and ``e_id`` (original numbers;
    ids of ``graph_store``), ``input_id`` (the seeds, which are the first ``batch_size`` vertices),
    ``num_sampled_nodes`` and ``num_sampled_edges`` of each hop.

    Of a graph with named types each is a ``HeteroData`` that has these by type and by relation, and numbers that count
    in the type, or in the relation by destination. Seeds are of one type.

    In a process group every rank gets, of each step, the seeds that lie in its partitions: all have as many steps. The
    mean loss of its seeds has to be multiplied by ``loss_weight``, so that the mean of all ranks' gradients (of
    DistributedDataParallel) is the step's.

    Args:
        artifact: of ``hongtu.open_artifact``.
        fanouts: in-edges per vertex (and relation) for every layer of the model, from the output on; -1: all. Or a
            dictionary of these by relation.
        batch_size: seeds of a step, of all ranks together.
        split: "train", "val" or "test": whose vertices are seeds; or int64 [N], original numbers, each once; or bool
            [V]. For one of several types ``(type, split)``, with numbers of the type; the type alone: all its vertices.
        shuffle: another order in every epoch; None: for "train" alone.
        replace: draw with replacement.
        seed: of the random numbers.
        drop_last: leave out a last batch that is smaller.
        ranks: all of whose processes make the same loader; a group that nothing else is sent in. None: all processes.
        window: steps whose features are fetched at once, on ranks; they stay in memory until the next are there.
        cache_memory: bytes of other ranks' features that stay beyond their window, on ranks.
        num_neighbors, input_nodes: torch_geometric's names of ``fanouts`` and ``split``.
        options: of ``torch.utils.data.DataLoader``: num_workers, pin_memory, persistent_workers, ...

    Attributes:
        epoch: how many sweeps have begun; set it to go on from there.
        windows: on ranks, what counts the bytes that come from others (``bytes_fetched``); else None.

    Raises:
        InputError: for seeds that are not there, of several types, none at all, or fan-outs that are none; on ranks for
            more of them than partitions, for options, and where a rank was given something else than rank 0.
    """

    def __init__(
        self,
        artifact: Artifact,
        fanouts: Fanouts = (),
        *,
        batch_size: int = 1024,
        split: Split = "train",
        shuffle: bool | None = None,
        replace: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        ranks: Together | None = None,
        window: int = 16,
        cache_memory: int | str = "256MiB",
        num_neighbors: Fanouts | None = None,
        input_nodes: Split | None = None,
        **options: Any,
    ) -> None:
        fanouts = fanouts if num_neighbors is None else num_neighbors
        split = split if input_nodes is None else input_nodes
        for name, given in (("batch_size", batch_size), ("window", window)):
            if not isinstance(given, (int, np.integer)) or given < 1:
                raise InputError(f"{name} {given}: expected a number from 1")
        sampler = NeighborSampler(artifact, fanouts, replace=replace, seed=seed)
        seeds = find_seeds(sampler, split)
        self._artifact, starts = artifact, artifact.topology.partition_start
        partition = np.searchsorted(starts, sampler.graph.new_id[seeds], side="right") - 1
        which = split[-1] if isinstance(split, tuple) else split
        shuffle = isinstance(which, str) and which == "train" if shuffle is None else shuffle
        steps = Steps(seeds, partition, batch_size, shuffle, seed, drop_last)
        self._epochs, self.windows = _Epochs(steps), None
        ranks = group_of_its_own() if ranks is None else ranks
        if ranks.size > 1:
            if options:
                raise InputError(
                    f"{next(iter(options))}: on ranks a thread makes batches a window ahead; leave it away"
                )
            what = {"fanouts": sampler.fanouts, "batch_size": batch_size, "shuffle": shuffle, "replace": replace}
            what |= {"seed": seed, "drop_last": drop_last, "window": window}
            what |= {"artifact": likeness(artifact.manifest | {"hash": ""})}
            what |= {"split": f"{len(seeds)} vertices, checksum {zlib.crc32(seeds.tobytes())}"}
            with ranks.call("NeighborLoader"):
                ranks.check_same(what, artifact=artifact.path)
            self.windows = Windows(sampler, ranks, window, parse_bytes(cache_memory, "cache_memory"))
        super().__init__(_Batches(sampler), sampler=self._epochs, batch_size=None, collate_fn=_itself, **options)

    def __iter__(self) -> Any:
        self._artifact.check_files()
        return super().__iter__() if self.windows is None else self._on_ranks(self.windows)

    def _on_ranks(self, windows: Windows) -> Iterator[Batch]:
        for drawn, x, weight in windows.batches(list(self._epochs)):
            batch = batch_of(windows.sampler, drawn, x if windows.width else None)
            batch.loss_weight = weight
            yield batch

    @property
    def epoch(self) -> int:
        return self._epochs.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epochs.epoch = epoch


def find_seeds(sampler: NeighborSampler, split: Split) -> np.ndarray:
    """int64 [N], original numbers.

    Raises:
        InputError: when there are none, one that is no vertex, or where they are not of one type.
    """
    artifact, types = sampler.graph.artifact, sampler.graph.artifact.types
    masks, names = artifact.masks, [] if types is None else [*types.names]
    kind, given = split if isinstance(split, tuple) and isinstance(split[0], str) else (None, split)
    if isinstance(given, str) and given in names and given not in masks:
        kind, given = given, None
    if not {kind} <= {None, *names} or (isinstance(given, str) and given not in masks):
        raise InputError(f"split {split!r}: expected one of {', '.join([*masks, *names])}, or vertices")
    span = slice(0, artifact.num_vertices) if types is None or kind is None else types.span(kind)
    count, title = span.stop - span.start, "split" if kind is None else f"split of {kind!r}"
    rows = np.asarray(masks[given])[sampler.graph.new_id[span]] if isinstance(given, str) else given
    seeds = np.arange(count) if rows is None else np.asarray(rows)
    if seeds.dtype == bool and seeds.shape == (count,):
        seeds = np.flatnonzero(seeds)
        if not len(seeds):
            raise InputError(f"{artifact.path}: {title}: no vertex is in the mask; give vertices, or another split")
    if seeds.ndim != 1 or seeds.dtype.kind not in "iu" or not len(seeds):
        raise InputError(f"{title}: {seeds.dtype} {list(seeds.shape)}, expected vertices: integers [N]")
    if seeds.min() < 0 or seeds.max() >= count:
        raise InputError(f"{title}: vertices {seeds.min()} to {seeds.max()}, there are 0 to {count - 1}")
    if len(np.unique(seeds)) < len(seeds):
        raise InputError(f"{title}: {len(seeds)} vertices, some of them twice; give each once")
    if types is not None and kind is None:
        of = np.unique(np.searchsorted(types.starts, seeds, side="right")) - 1
        if len(of) > 1 or not isinstance(given, str):
            raise InputError(f"split: seeds are of one type; give it, too: ({names[of[0]]!r}, a split or vertices)")
    return span.start + seeds.astype(np.int64)


class _Batches(Dataset):
    """The batch of a step."""

    def __init__(self, sampler: NeighborSampler) -> None:
        self.sampler = sampler

    def __getitem__(self, step: Step) -> Batch:
        artifact, drawn = self.sampler.graph.artifact, self.sampler.sample(step.seeds, step.key)
        return batch_of(
            self.sampler, drawn, None if artifact.learns_features else feature_rows(artifact, drawn.vertices)
        )


class _Epochs(Sampler):
    """The steps of one epoch after the other."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.epoch = steps, 0

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        self.epoch += 1  # when the first step is asked for: workers make a DataLoader call this twice
        yield from self.steps.of(self.epoch)


def _itself(batch: Batch) -> Batch:
    return batch
