"""A device of a run: memory with an enforced budget (``memory.py``), and copies in and out of it that are counted.

``Device`` is what the engine knows; :mod:`hongtu.device.cpu` and :mod:`hongtu.device.staged` are its kinds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hongtu.device.layer_memory import NONE, Substitutes
from hongtu.device.memory import DeviceMemory
from hongtu.device.script import Source
from hongtu.device.streams import Streams
from hongtu.kernels.dispatch import Kernels
from hongtu.metrics import Traffic

Stores = bool | np.ndarray  # whether rows are stored, or for each of them, bool [D]; others are added


class Chosen(NamedTuple):
    """Which of a chunk's rows: the buffer to which their numbers were brought, and these, int32."""

    buffer: str
    rows: np.ndarray


class Device(DeviceMemory):
    """One device of a run.

    Args:
        name: for messages and records, "device 0".
        budget: bytes, or None for no limit.
        traffic: counter that every copy of this device adds to.
        streams: where its work is queued.
        kernels: what runs on its tensors.
        substitutes: what layers' operations are replaced with.
    """

    def __init__(
        self,
        name: str,
        budget: int | None,
        traffic: Traffic,
        streams: Streams,
        kernels: Kernels,
        substitutes: Substitutes = NONE,
    ) -> None:
        super().__init__(name, budget, traffic, substitutes)
        self.streams, self.kernels = streams, kernels

    # ---------------------------------------------------------------- rows, in the stream that is named

    def move_rows(self, link: str, src: Tensor, src_index: Tensor, dst: Tensor, dst_index: Tensor) -> None:
        """On ``load``: ``dst[dst_index] = src[src_index]``, from the host or a peer to this device."""

        def move() -> None:
            start = perf_counter()
            self._copy_rows(src, src_index, dst, dst_index)
            self._count(link, src if src.dtype == torch.bfloat16 else dst, dst_index, start)

        if dst_index.shape[0]:
            self.streams.load.run(move)

    def push_rows(
        self, cache: Tensor, slots: Tensor, peer_cache: Tensor, peer_slots: Tensor, *, contended: bool
    ) -> None:
        """On ``compute``: ``peer_cache[peer_slots] += cache[slots]`` over the peer link; ``contended`` where others may
        add to the same rows meanwhile."""

        def push() -> None:
            start = perf_counter()
            self._add_to_peer(cache, slots, peer_cache, peer_slots, contended)
            self._count("push", cache, slots, start)

        self.streams.compute.run(push)

    def flush_rows(
        self, number: int, cache: Tensor, slots: Tensor, host: Tensor, rows: np.ndarray, stores: Stores
    ) -> None:
        """On ``flush`` and ``host``: ``host[rows] += cache[slots]`` over the host link, or ``=`` where ``stores`` says
        so; the host accumulates."""
        if len(rows):
            flags = stores if isinstance(stores, np.ndarray) else np.full(len(rows), stores)
            self._flush_rows(number, cache, slots, host, rows, flags)

    def zero_rows(self, cache: Tensor, slots: Tensor) -> None:
        """On ``compute``: ``cache[slots] = 0``."""
        if slots.shape[0]:
            self.streams.compute.run(lambda: self.kernels.zero_rows(cache, slots))

    def _copy_rows(self, src: Tensor, src_index: Tensor, dst: Tensor, dst_index: Tensor) -> None:
        self.kernels.copy_rows(src, src_index, dst, dst_index)

    def _count(self, link: str, rows: Tensor, index: Tensor, start: float) -> None:
        count = index.shape[0]
        self.traffic.add(link, count * rows.shape[1] * rows.itemsize, count, perf_counter() - start)

    def numbers(self, *shape: int) -> Tensor:
        """Float64 numbers on the device, one or so many: zeros for what runs on ``compute``."""
        numbers = self.empty(shape, torch.float64)
        self.streams.compute.run(numbers.zero_)
        return numbers

    # ---------------------------------------------------------------- what differs

    @abstractmethod
    def _add_to_peer(
        self, cache: Tensor, slots: Tensor, peer_cache: Tensor, peer_slots: Tensor, contended: bool
    ) -> None:
        """``peer_cache[peer_slots] += cache[slots]``, while others may do the same where they are ``contended``."""

    @abstractmethod
    def fill(self, tensor: Tensor, host: Tensor, link: str) -> None:
        """On ``load``: copy contiguous host rows to a tensor that stays, or to a part of it."""

    @abstractmethod
    def bring(self, name: str, number: int, source: Source, link: str, chosen: Chosen | None = None) -> Tensor:
        """On ``load``: copy a host array, or some rows of a host tensor, into the front of staging buffer ``name``;
        returns that part of it.

        Args:
            number: of the batch in its pass.
            source: gives the array; it is not asked where a script that stays has it.
        """

    @abstractmethod
    def emit(
        self, name: str, number: int, rows: Tensor, host: Tensor, *, stores: Stores, index: Tensor | None
    ) -> None:  # fmt: skip
        """Inside ``computing``: ``rows`` are to be stored in or added to ``host``, or rows ``index`` of it."""

    @abstractmethod
    def _flush_rows(
        self, number: int, cache: Tensor, slots: Tensor, host: Tensor, rows: np.ndarray, stores: np.ndarray
    ) -> None:
        """``flush_rows`` of at least one row, with a flag for each."""

    # -------------------------------- nothing, unless a device has memory or streams of its own

    def hold(self, nbytes: int) -> None:
        """Take the memory in which all planned buffers lie from now on.

        Raises:
            DeviceOutOfMemory: when it does not fit the budget.
        """

    def keep_scripts(self, name: str, nbytes: Sequence[int], dtypes: dict[str, torch.dtype]) -> None:
        """Have memory of the host, for the whole run, in which the scripts of a pass stay once they are packed.

        Args:
            nbytes: of the script of every batch.
        """

    def ship(self, number: int) -> None:
        """On ``load``: what was brought of a script's arrays since the last time reaches the device."""

    def deliver(
        self, name: str, number: int, count: int, host: Tensor, *, stores: Stores, chosen: Chosen | None
    ) -> None:
        """On ``flush`` and ``host``: what was emitted reaches its ``count`` rows."""

    def begin(self) -> None:
        """Before work is queued: wait for what was done to the device's tensors outside of its streams."""

    def drain(self) -> None:
        """Wait for all work."""

    def abandon(self) -> None:
        """After an error: forget work that has not begun, wait for what has."""


def crossing_bytes(rows: Tensor, other: Tensor) -> int:
    """Bytes of a device's rows that cross a link to or from others: in the run's numbers, or in bfloat16 where the host
    has them in it; what it has as the artifact does, in float32, is cast there."""
    return rows.numel() * (other.itemsize if other.dtype == torch.bfloat16 else rows.itemsize)
