"""What streams do, written down: every access to memory, in which stream, and every wait between streams.

A tape is made once, in any order of work. Then vector clocks say whether all streams that touch the same bytes, one of
them to write, are ordered by waits; in the order of work that there was, or in any other that the waits allow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hongtu.cuda_ext import kernels as cuda_kernels
from hongtu.cuda_ext.edge_kernels import EdgeKernel
from hongtu.device import host_work, script
from hongtu.device.simulated import Queue, QueueEvent, Scheduler, SimulatedBackend
from hongtu.kernels.torch_private import Operations
from tests.frozen import EMPTY

Kind = Literal["reads", "writes", "adds"]  # "adds": atomically at system scope
CONFLICTS: dict[Kind, tuple[Kind, ...]] = {"reads": ("writes", "adds"), "writes": ("reads", "writes", "adds"),
                                           "adds": ("reads", "writes")}  # fmt: skip
DISPATCHER = 0  # the thread that gives streams their work


class Access(NamedTuple):
    """Units ``where`` of a memory are read or written by a stream."""

    stream: int
    memory: int
    kind: Kind
    where: slice | np.ndarray
    by: str


class Launched(NamedTuple):
    """A stream begins something with these numbers beside its memory."""

    stream: int
    by: str
    numbers: tuple[Any, ...]


class Sent(NamedTuple):
    """All that ``stream`` has done so far is done before what waits for ``moment``."""

    stream: int
    moment: object


class Waited(NamedTuple):
    """What ``stream`` does from now on is done behind ``moment``; ``why`` is "" for the order of a queue."""

    stream: int
    moment: object
    why: str


UNIT = 4  # bytes; what is smaller is touched with its neighbours


class Mark(NamedTuple):
    """A moment of a tape: how many entries, and how many memories, it had."""

    entries: int
    memories: int


class Memory:
    """A storage, in units; it is kept, so that its addresses are nobody else's."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.start, self.units = storage.data_ptr(), -(-storage.nbytes() // UNIT)


class Tape(Scheduler):
    """A scheduler that writes down what its queues and the dispatching thread do.

    Attributes:
        entries: in the order in which they were done.
        streams: how many there are, the dispatcher among them.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.entries: list[Access | Launched | Sent | Waited] = []
        self.streams, self.current = 1, DISPATCHER
        self._memories: list[Memory] = []
        self._starts: list[int] = []  # sorted, with the numbers of their memories
        self._numbers: list[int] = []

    def queue(self) -> Queue:
        queue = TapedQueue(self, self._random.random(), self.streams)
        self.streams += 1
        self._queues.append(queue)
        return queue

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @property
    def now(self) -> Mark:
        """How much there is so far."""
        return Mark(len(self.entries), len(self._memories))

    def launched(self, by: str, *given: Any) -> None:
        """A stream begins something with what of this are numbers."""
        self.entries.append(Launched(self.current, by, tuple(_numbers(given))))

    # ------------------------------------------------------------------------------------------------------ accesses

    def touch(self, kind: Kind, tensor: Tensor | None, rows: Tensor | np.ndarray | None = None, by: str = "") -> None:
        """A stream touches all of a tensor, or rows of it."""
        if tensor is None or tensor.numel() == 0:
            return
        if isinstance(rows, Tensor):
            self.touch("reads", rows, None, by)
            rows = rows.numpy()
        if rows is None or not len(rows):
            last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
            self._note(kind, tensor, slice(0, (1 + last) * tensor.itemsize), by)
        else:
            part = np.unique(rows).astype(np.int64) * tensor.stride(0) * tensor.itemsize
            self._note(kind, tensor, part, by, tensor[0].nbytes)

    def touch_array(self, kind: Kind, array: np.ndarray, rows: np.ndarray | None = None, by: str = "") -> None:
        """The same of an array; what no tensor has shown is nobody's but the dispatcher's."""
        if array.nbytes and self._find(array.ctypes.data) is not None:
            self.touch(kind, torch.from_numpy(array), rows, by)

    def _note(self, kind: Kind, tensor: Tensor, part: slice | np.ndarray, by: str, row: int = 0) -> None:
        number = self._number(tensor)
        memory = self._memories[number]
        first = tensor.data_ptr() - memory.start
        where: slice | np.ndarray
        if isinstance(part, slice):
            where = slice((first + part.start) // UNIT, -(-(first + part.stop) // UNIT))
        elif row % UNIT or (part % UNIT).any():
            where = np.unique((first + part[:, None] + np.arange(row)) // UNIT)
        else:
            where = (first // UNIT + part[:, None] // UNIT + np.arange(row // UNIT)).ravel()
        self.entries.append(Access(self.current, number, kind, where, by))

    def _find(self, address: int) -> int | None:
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        number = self._numbers[at]
        memory = self._memories[number]
        return number if address < memory.start + memory.units * UNIT else None

    def _number(self, tensor: Tensor) -> int:
        found = self._find(tensor.data_ptr())
        if found is not None:
            return found
        storage = tensor.untyped_storage()
        memory = Memory(storage)
        at = bisect_right(self._starts, memory.start)
        self._starts.insert(at, memory.start)
        self._numbers.insert(at, len(self._memories))
        self._memories.append(memory)
        return len(self._memories) - 1


def _numbers(given: Any) -> Iterator[Any]:
    for x in given:
        if isinstance(x, list | tuple):
            yield from _numbers(x)
        elif isinstance(x, int | float):
            yield x


class TapedQueue(Queue):
    """A queue whose work is done in the tape's name."""

    def __init__(self, tape: Tape, speed: float, number: int) -> None:
        super().__init__(tape, speed)
        self.tape, self.number = tape, number

    def run(self, work: Callable[[], object]) -> None:
        tape, given = self.tape, object()
        tape.entries.append(Sent(tape.current, given))

        def taped() -> None:
            tape.entries.append(Waited(self.number, given, ""))
            with tape.on(self.number):
                work()

        super().run(taped)

    def record(self) -> QueueEvent:
        moment = TapedEvent(self.tape)
        self._work.append(moment)
        return moment

    def wait(self, event: Any, why: str) -> None:
        super().wait(event, why)
        if self._work and self._work[-1] == (event,):
            self._work.append(lambda: self.tape.entries.append(Waited(self.number, event, why)))

    def step(self) -> None:
        if isinstance(self._work[0], QueueEvent):
            self.tape.entries.append(Sent(self.number, self._work[0]))
        super().step()


class TapedEvent(QueueEvent):
    def synchronize(self, why: str) -> None:
        super().synchronize(why)
        tape = self._scheduler
        tape.entries.append(Waited(tape.current, self, why))


class TapedKernels:
    """Kernels, with what each of them touches."""

    def __init__(self, kernels: Any, tape: Tape) -> None:
        self._kernels, self._tape = kernels, tape

    def __getattr__(self, name: str) -> Callable[..., None]:
        call, note = getattr(self._kernels, name), getattr(self, f"_{name}", None)
        declared = getattr(cuda_kernels, name)

        def taped(*args: Any, **options: Any) -> None:
            self._tape.launched(name, args, *options.items())
            if note is not None:
                note(*args, **options)
            else:
                assert isinstance(declared, EdgeKernel) or name == "dropout", name
                edge = isinstance(declared, EdgeKernel)
                names = [p.name for p in declared.parameters] if edge else ["x", "ids", "key"]
                for k, x in enumerate(args):
                    out = names[k].startswith(("out", "grad_logits")) if k < len(names) else True
                    if isinstance(x, Tensor):
                        self._tape.touch("writes" if out else "reads", x, by=name)
            call(*args, **options)

        return taped

    def _copy_rows(self, src: Any, src_index: Any, dst: Any, dst_index: Any, **_: Any) -> None:
        if _no_rows(src, src_index) or _no_rows(dst, dst_index):
            return
        self._tape.touch("reads", src, src_index, "copy_rows")
        self._tape.touch("writes", dst, dst_index, "copy_rows")

    def _add_rows(self, src: Any, src_index: Any, dst: Any, dst_index: Any, how: str = "plain", **_: Any) -> None:
        if _no_rows(src, src_index) or _no_rows(dst, dst_index):
            return
        self._tape.touch("reads", src, src_index, "add_rows")
        self._tape.touch("adds" if how == "system" else "writes", dst, dst_index, "add_rows")

    def _zero_rows(self, dst: Any, dst_index: Any) -> None:
        self._tape.touch("writes", dst, dst_index, "zero_rows")

    def _gather_rows(self, src: Any, index: Any, out: Any) -> None:
        self._copy_rows(src, index, out, None)

    def _scatter_add_rows(self, dst: Any, index: Any, src: Any) -> None:
        self._add_rows(src, None, dst, index)

    def _scatter_add_edges(self, local_source: Any, src: Any, out: Any) -> None:
        self._tape.touch("reads", src, by="scatter_add_edges")
        self._tape.touch("writes", out, local_source, "scatter_add_edges")

    def _csc_aggregate(self, indptr: Any, source: Any, slots: Any, weight: Any, mean: Any, rows: Any, out: Any) -> None:
        for x in (indptr, source, weight):
            self._tape.touch("reads", x, by="csc_aggregate")
        if len(source):  # else no slots would stand for all
            self._tape.touch("reads", rows, slots, "csc_aggregate")
        self._tape.touch("writes", out, by="csc_aggregate")

    def _csc_aggregate_transpose(self, indptr: Any, source: Any, slots: Any, weight: Any, mean: Any, grad: Any,
                                 out: Any) -> None:  # fmt: skip
        if not len(source):
            return  # nothing is launched; no slots would stand for all
        for x in (indptr, source, weight, grad):
            self._tape.touch("reads", x, by="csc_aggregate_transpose")
        self._tape.touch("writes", out, slots, "csc_aggregate_transpose")


def _no_rows(rows: Tensor, index: Tensor | None) -> bool:
    """Whether none of the rows are meant: no index stands for all, and so does one of length 0."""
    return not len(rows) and (index is None or not len(index))


class TapedOperations(Operations):
    """Every operation of torch, in the stream that runs it."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.is_view:
            return out
        tape, name = self._tape, str(func)
        tape.launched(name, args, *kwargs.items())
        if func._schema.name.removeprefix("aten::") in EMPTY or (
            name.startswith("aten.index_select") and not len(args[2])
        ):
            return out
        if func is torch.ops.aten.index_select.default or func is torch.ops.aten.index_select.out:
            rows = args[0] if args[0].stride(-1) == 1 and args[1] == 0 else None
            tape.touch("reads", args[0], None if rows is None else args[2], name)
            tape.touch("writes", out, by=name)
            return out
        for given, declared in zip(args, func._schema.arguments, strict=False):
            self._touch(given, declared, name)
        for declared in func._schema.arguments:
            if declared.name in kwargs:
                self._touch(kwargs[declared.name], declared, name)
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, Tensor):
                tape.touch("writes", made, by=name)
        return out

    def _touch(self, given: Any, declared: Any, name: str) -> None:
        writes = declared.alias_info is not None and declared.alias_info.is_write
        for x in given if isinstance(given, tuple | list) else (given,):
            if isinstance(x, Tensor):
                self._tape.touch("writes" if writes else "reads", x, by=name)


def taped(seed: int = 0) -> SimulatedBackend:
    """A simulated machine whose scheduler is a tape."""
    backend = SimulatedBackend(seed=seed)
    backend.scheduler = Tape(seed)
    backend.kernels = TapedKernels(backend.kernels, backend.scheduler)
    return backend


@contextmanager
def taping(tape: Tape, monkeypatch: Any) -> Iterator[None]:
    """Inside, what the host does to arrays is on the tape, too, and every operation of torch."""
    copy, put = script.copy_on_host, host_work.put_rows

    def copy_on_host(source: np.ndarray, target: np.ndarray, index: np.ndarray | None = None) -> None:
        tape.touch_array("reads", source, index, by="copy on host")
        tape.touch_array("writes", target, by="copy on host")
        copy(source, target, index)

    def put_rows(rows: np.ndarray, host: np.ndarray, index: np.ndarray | None, stores: Any) -> None:
        tape.touch_array("reads", rows, by="put on host")
        tape.touch_array("writes", host, index, "put on host")
        put(rows, host, index, stores)

    with monkeypatch.context() as patched, TapedOperations(tape):
        patched.setattr(script, "copy_on_host", copy_on_host)
        patched.setattr(host_work, "put_rows", put_rows)
        yield


def conflicts(tape: Tape, without: frozenset[str] = frozenset()) -> set[str]:
    """What two streams do to the same bytes without an order between them.

    Args:
        without: reasons of waits that are taken to be none.
    """
    clocks = np.eye(tape.streams, dtype=np.int64)
    moments: dict[int, np.ndarray] = {}
    shared = _shared(tape)
    seen: dict[tuple[int, Kind, int], np.ndarray] = {}  # by memory, kind and stream: when each unit was touched last
    found: set[str] = set()
    for entry in tape.entries:
        if isinstance(entry, Sent):
            moments[id(entry.moment)] = clocks[entry.stream].copy()
            clocks[entry.stream, entry.stream] += 1
        elif isinstance(entry, Waited):
            if entry.why not in without:
                np.maximum(clocks[entry.stream], moments[id(entry.moment)], out=clocks[entry.stream])
        elif isinstance(entry, Access) and entry.memory in shared:
            for kind in CONFLICTS[entry.kind]:
                for other in shared[entry.memory] - {entry.stream}:
                    times = seen.get((entry.memory, kind, other))
                    if times is not None and (times[entry.where] > clocks[entry.stream, other]).any():
                        found.add(f"stream {entry.stream} {entry.kind} ({entry.by}) what stream {other} {kind}")
            key = entry.memory, entry.kind, entry.stream
            if key not in seen:
                seen[key] = np.zeros(tape._memories[entry.memory].units, dtype=np.int64)
            seen[key][entry.where] = clocks[entry.stream, entry.stream]
    return found


def work_between(tape: Tape, begin: Mark, end: Mark) -> dict[int, list[tuple[Any, ...]]]:
    """What every stream did from one mark to another, in its order, however streams took turns.

    Memory that was there at ``begin`` has its bytes; what somebody made since then has the stream that touched it
    first, and how many that one had touched first before. Moments likewise have the stream that sent them.
    """
    done: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    made: dict[int, tuple[int, int]] = {}
    sent: dict[int, tuple[int, int]] = {}
    count: defaultdict[tuple[str, int], int] = defaultdict(int)

    def name(names: dict[int, tuple[int, int]], kind: str, key: int, stream: int) -> tuple[int, int]:
        if key not in names:
            names[key] = stream, count[kind, stream]
            count[kind, stream] += 1
        return names[key]

    for entry in tape.entries[begin.entries : end.entries]:
        if isinstance(entry, Sent):
            done[entry.stream].append(("sent", name(sent, "sent", id(entry.moment), entry.stream)))
        elif isinstance(entry, Waited):
            done[entry.stream].append(("waited", sent.get(id(entry.moment), "before"), entry.why))
        elif isinstance(entry, Launched):
            done[entry.stream].append(("launched", entry.by, entry.numbers))
        else:
            new = entry.memory >= begin.memories
            memory = name(made, "made", entry.memory, entry.stream) if new else entry.memory
            where = entry.where
            part = (where.start, where.stop) if isinstance(where, slice) else tuple(where.tolist())
            done[entry.stream].append((entry.kind, memory, part, entry.by))
    return dict(done)


def _shared(tape: Tape) -> dict[int, set[int]]:
    """The memories that several streams touch, with these."""
    touching: defaultdict[int, set[int]] = defaultdict(set)
    for entry in tape.entries:
        if isinstance(entry, Access):
            touching[entry.memory].add(entry.stream)
    return {memory: streams for memory, streams in touching.items() if len(streams) > 1}
