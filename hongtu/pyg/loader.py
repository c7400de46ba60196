"""Sampled mini-batches of an artifact in one line, as torch_geometric's NeighborLoader gives them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch_geometric.data import Data

from hongtu.config import parse_bytes
from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.pyg.draw import Drawn
from hongtu.pyg.sampler import NeighborSampler
from hongtu.pyg.steps import Step, Steps
from hongtu.pyg.stores import feature_rows, label_rows
from hongtu.pyg.windows import Windows, group_of_its_own
from hongtu.ranks.together import Together


class NeighborLoader(DataLoader):
    """Batches of sampled neighbourhoods: approximate training, for when it is enough.

    The batches of an epoch follow from the seed and its number alone, whatever the number of workers. Each is a
    ``torch_geometric.data.Data`` with ``x``, ``y``, ``edge_index`` and what else the artifact has (``edge_weight``,
    ``edge_attr``, ``edge_type``), ``n_id`` and ``e_id`` (original numbers; ids of ``graph_store``), ``input_id`` (the
    seeds, which are the first ``batch_size`` vertices), ``num_sampled_nodes`` and ``num_sampled_edges`` of each hop.

    In a process group every rank gets, of each step, the seeds that lie in its partitions: all have as many steps. The
    mean loss of its seeds has to be multiplied by ``loss_weight``, so that the mean of all ranks' gradients (of
    DistributedDataParallel) is the step's.

    Args:
        artifact: of ``hongtu.open_artifact``.
        fanouts: in-edges per vertex for every layer of the model, from the output on; -1: all.
        batch_size: seeds of a step, of all ranks together.
        split: "train", "val" or "test": whose vertices are seeds; or int64 [N], original numbers,
            each once.
        shuffle: another order in every epoch; None: for "train" alone.
        replace: draw with replacement.
        seed: of the random numbers.
        drop_last: leave out a last batch that is smaller.
        ranks: all of whose processes make the same loader; a group that nothing else is sent in. None: all processes.
        window: steps whose features are fetched at once, on ranks; they stay in memory until the next are there.
        cache_memory: bytes of other ranks' features that stay beyond their window, on ranks.
        options: of ``torch.utils.data.DataLoader``: num_workers, pin_memory, persistent_workers, ...

    Attributes:
        epoch: how many sweeps have begun; set it to go on from there.
        windows: on ranks, what counts the bytes that come from others (``bytes_fetched``); else None.

    Raises:
        InputError: for seeds that are not there, none at all, or fan-outs that are none; on ranks for more of them than
            partitions, for options, and where a rank was given something else than rank 0.
    """

    def __init__(
        self,
        artifact: Artifact,
        fanouts: Sequence[int],
        *,
        batch_size: int = 1024,
        split: str | np.ndarray | torch.Tensor = "train",
        shuffle: bool | None = None,
        replace: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        ranks: Together | None = None,
        window: int = 16,
        cache_memory: int | str = "256MiB",
        **options: Any,
    ) -> None:
        for name, given in (("batch_size", batch_size), ("window", window)):
            if not isinstance(given, (int, np.integer)) or given < 1:
                raise InputError(f"{name} {given}: expected a number from 1")
        sampler = NeighborSampler(artifact, fanouts, replace=replace, seed=seed)
        seeds = find_seeds(sampler, split)
        self._artifact, starts = artifact, artifact.topology.partition_start
        partition = np.searchsorted(starts, sampler.graph.new_id[seeds], side="right") - 1
        shuffle = isinstance(split, str) and split == "train" if shuffle is None else shuffle
        steps = Steps(seeds, partition, batch_size, shuffle, seed, drop_last)
        self._epochs, self.windows = _Epochs(steps), None
        ranks = group_of_its_own() if ranks is None else ranks
        if ranks.size > 1:
            if options:
                raise InputError(
                    f"{next(iter(options))}: on ranks a thread makes batches a window ahead; leave it away"
                )
            what = {"fanouts": fanouts, "batch_size": batch_size, "shuffle": shuffle, "replace": replace, "seed": seed}
            what |= {"drop_last": drop_last, "window": window, "artifact": artifact.manifest["hash"]}
            what |= {"split": f"{len(seeds)} vertices, checksum {zlib.crc32(seeds.tobytes())}"}
            with ranks.call("NeighborLoader"):
                ranks.check_same(what)
            self.windows = Windows(sampler, ranks, window, parse_bytes(cache_memory))
        super().__init__(_Batches(sampler), sampler=self._epochs, batch_size=None, collate_fn=_itself, **options)

    def __iter__(self) -> Any:
        self._artifact.check_files()
        return super().__iter__() if self.windows is None else self._on_ranks(self.windows)

    def _on_ranks(self, windows: Windows) -> Iterator[Data]:
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


def find_seeds(sampler: NeighborSampler, split: str | np.ndarray | torch.Tensor) -> np.ndarray:
    """int64 [N], original numbers.

    Raises:
        InputError: when there are none, or one that is no vertex.
    """
    artifact = sampler.graph.artifact
    if not isinstance(split, str):
        seeds = np.asarray(split)
        if seeds.ndim != 1 or seeds.dtype.kind not in "iu" or not len(seeds):
            raise InputError(f"split: {seeds.dtype} {list(seeds.shape)}, expected vertices: integers [N]")
        if seeds.min() < 0 or seeds.max() >= artifact.num_vertices:
            raise InputError(
                f"split: vertices {seeds.min()} to {seeds.max()}, there are 0 to {artifact.num_vertices - 1}"
            )
        if len(np.unique(seeds)) < len(seeds):
            raise InputError(f"split: {len(seeds)} vertices, some of them twice; give each once")
        return seeds.astype(np.int64)
    if split not in artifact.masks:
        raise InputError(f"split {split!r}: expected one of {', '.join(artifact.masks)}, or vertices")
    seeds = np.flatnonzero(np.asarray(artifact.masks[split])[sampler.graph.new_id])
    if not len(seeds):
        raise InputError(f"{artifact.path}: no vertex is in {split}_mask; give vertices, or another split")
    return seeds


def batch_of(sampler: NeighborSampler, drawn: Drawn, x: torch.Tensor | None) -> Data:
    """What torch_geometric's models take.

    Args:
        x: float32 [N, F] of the batch's vertices, or None where features are learned.
    """
    artifact, size = sampler.graph.artifact, drawn.vertices_per_hop[0]
    topology = artifact.topology
    rows = {"edge_weight": topology.edge_weight, "edge_attr": topology.edge_features, "edge_type": topology.edge_type}
    n_id = torch.from_numpy(sampler.original(drawn))
    return Data(
        x=x,
        y=label_rows(artifact, drawn.vertices),
        edge_index=torch.from_numpy(np.stack([drawn.source, drawn.destination])),
        n_id=n_id,
        e_id=torch.from_numpy(sampler.edge_ids(drawn)),
        input_id=n_id[:size],
        batch_size=size,
        loss_weight=1.0,
        num_nodes=len(drawn.vertices),
        num_sampled_nodes=drawn.vertices_per_hop,
        num_sampled_edges=drawn.edges_per_hop,
        **{name: torch.from_numpy(np.asarray(of)[drawn.edge]) for name, of in rows.items() if of is not None},
    )


class _Batches(Dataset):
    """The batch of a step."""

    def __init__(self, sampler: NeighborSampler) -> None:
        self.sampler = sampler

    def __getitem__(self, step: Step) -> Data:
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


def _itself(batch: Data) -> Data:
    return batch
