"""Runs that give the same bits again: the state of the process's random generators, and torch's deterministic mode."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Make torch, numpy and Python draw the same numbers in every process."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def random_state() -> dict[str, Any]:
    """The state of torch's generators (of every device), numpy's and Python's, as tensors and plain values."""
    name, key, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, torch.from_numpy(np.array(key, dtype=np.int64)), *rest],
        "python": random.getstate(),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on from a state; those of devices that are not there are left out."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        for index, of_device in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(of_device, index)
    name, key, *rest = state["numpy"]
    np.random.set_state((name, key.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


def draws_since(state: dict[str, Any]) -> list[torch.Tensor]:
    """Where the host's generators are, torch's and then the others, int64 [numbers], if anything has drawn from one
    since, none of those that nothing has drawn from; else nothing."""
    pairs = [
        (one["torch"].long(), torch.cat([one["numpy"][1], torch.tensor([one["numpy"][2], *one["python"][1]])]))
        for one in (state, random_state())
    ]
    found = [now[:0] if torch.equal(before, now) else now for before, now in zip(*pairs, strict=True)]
    return found if any(map(len, found)) else []


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Inside, numbers may be drawn that are drawn again behind it."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


@contextmanager
def deterministic_torch(on: bool) -> Iterator[None]:
    """Inside, torch refuses operations whose result may differ from run to run."""
    if not on:
        yield
        return
    options: Any = torch.utils.deterministic
    before = torch.get_deterministic_debug_mode(), options.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")
    options.fill_uninitialized_memory = False  # buffers are written before they are read
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        options.fill_uninitialized_memory = before[1]
