"""The tape of an epoch, frozen: every launch, copy and operation of torch, done again at its addresses.

Nothing of the engine runs in a replay: no plan is read, no Python of a layer, no autograd. So it does what a captured
graph of a GPU would do, and shows what such a graph would miss.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hongtu.cuda_ext.host_build import HostLauncher
from hongtu.device import script, staged
from hongtu.device.simulated import SLOWEST, poison
from hongtu.engine import host_store
from hongtu.kernels.torch_private import Operations, storage_id
from tests.tape import EMPTY, Sent, Tape, Waited

HOST_WORK = ((script, "copy_on_host"), (staged, "_put_rows"), (host_store, "zero_rows"))  # on arrays, not by torch


class Again(NamedTuple):
    """A stream does something, which ``work`` does again."""

    stream: int
    work: Callable[[], object]


class Recording(Operations):
    """Inside, what operations of torch do is on the tape as work that can be done again."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def again(self, work: Callable[[], object]) -> None:
        self._tape.entries.append(Again(self._tape.current, work))  # type: ignore[arg-type]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = {storage_id(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        made = [isinstance(x, Tensor) and storage_id(x) not in given for x in tree_leaves(out)]
        if func._schema.name.removeprefix("aten::") in EMPTY:
            self.again(partial(poison, out))
        elif any(made) or (func._schema.is_mutable and not func.is_view):
            self.again(partial(_redo, func, args, kwargs, out, made))
        return out


@torch.no_grad()
def _redo(func: Any, args: Any, kwargs: Any, out: Any, made: list[bool]) -> None:
    """What an operation made lies where it lay."""
    for new, old, into in zip(tree_leaves(func(*args, **kwargs)), tree_leaves(out), made, strict=True):
        if into:
            old.copy_(new)


@contextmanager
def recording(tape: Tape, monkeypatch: Any) -> Iterator[None]:
    """Inside, all that streams and the dispatching thread do to memory can be done again."""
    mode, launch = Recording(tape), HostLauncher.launch

    def launched(self: Any, name: Any, grid: Any, block: Any, args: Any, stream: Any, tensors: Any) -> None:
        frozen = partial(launch, self, name, grid, block, tuple(args), None, tensors)
        mode.again(frozen)
        frozen()

    def worked(call: Callable[..., None]) -> Callable[..., None]:
        return lambda *args: (mode.again(partial(call, *args)), call(*args))[1]

    with monkeypatch.context() as patched, mode:
        patched.setattr(HostLauncher, "launch", launched)
        for module, name in HOST_WORK:
            patched.setattr(module, name, worked(getattr(module, name)))
        yield


def replay(entries: list[Any], seed: int | None = None) -> None:
    """Do it all again: in the order of the tape, or in a random one that its waits allow, some streams much slower."""
    if seed is None:
        for entry in entries:
            if isinstance(entry, Again):
                entry.work()
        return
    lanes: defaultdict[int, deque[Any]] = defaultdict(deque)
    for entry in entries:
        lanes[entry.stream].append(entry)
    draw = random.Random(seed)
    speeds = {stream: SLOWEST ** draw.random() for stream in lanes}
    coming = {id(entry.moment) for entry in entries if isinstance(entry, Sent)}
    while lanes:
        ready = [s for s, lane in lanes.items() if not (isinstance(lane[0], Waited) and id(lane[0].moment) in coming)]
        stream = draw.choices(ready, [speeds[s] for s in ready])[0]
        entry = lanes[stream].popleft()
        if isinstance(entry, Again):
            entry.work()
        elif isinstance(entry, Sent):
            coming.discard(id(entry.moment))
        if not lanes[stream]:
            del lanes[stream]
