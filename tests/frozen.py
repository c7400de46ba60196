"""What a captured graph is where GPUs are simulated: every launch and operation of torch, done again at its addresses.

Nothing of the engine runs when it is done again: no plan is read, no Python of a layer, no autograd. So it shows what a
graph of a GPU would miss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from hongtu.cuda_ext.host_build import HostLauncher
from hongtu.device.base import Device
from hongtu.device.capture import CaptureError, leaves_of
from hongtu.device.simulated import SLOWEST, Queue, QueueEvent, Scheduler, SimulatedBackend
from hongtu.device.streams import Event, Stream
from hongtu.kernels.dispatch import CudaKernels
from hongtu.kernels.torch_private import Operations, storage_id

EMPTY = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")  # they touch nothing
Work = Callable[[], object]
Step = tuple[Stream, list[Work] | Event | tuple[Event, str]]  # what a queue has: work, a moment, or a wait for one


class Recording(Operations):
    """Inside, what queues are given and what they do is written down, so that it can be done again.

    Operations give their results in memory that the recording holds, too, by a storage of its own: who counts what
    layers take sees them go.

    Args:
        memory: of results that recordings hold, by address; what one of them made, a later one may use.

    Attributes:
        steps: in the order in which they were given.
    """

    def __init__(self, memory: WeakValueDictionary[int, np.ndarray]) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self._memory = memory
        self._now: list[Work] | None = None  # of the piece of work that is being done

    def taken(self, queue: Stream, work: Work, *, on_host: bool) -> Work:
        """``work`` of a queue, so that it is written down when it is done; the host's own is of arrays, and is written
        down as it is."""
        if on_host:
            self.steps.append((queue, [work]))
            return work
        done: list[Work] = []
        self.steps.append((queue, done))
        return self.noted(work, done)

    def noted(self, work: Work, done: list[Work]) -> Work:
        """``work``, so that what it does is put into a list."""

        def run() -> None:
            self._now = done
            work()
            self._now = None

        return run

    def note(self, work: Work, what: object) -> None:
        """Something that a queue does, which ``work`` does again."""
        if self._now is None:
            raise CaptureError(f"{what} runs outside of streams")
        self._now.append(work)

    def memory(self, x: Any) -> np.ndarray | None:
        """What is held of a tensor, where it is a result."""
        return self._memory.get(x.untyped_storage().data_ptr()) if isinstance(x, Tensor) else None

    def _held(self, x: Any) -> Any:
        """A tensor of the same memory that stays and has no graph, where it is a tensor."""
        memory = self.memory(x)
        if memory is None:
            return x.detach() if isinstance(x, Tensor) else x
        return _tensor(memory, x)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.is_view:
            return out
        given = {storage_id(x) for x in leaves_of((args, kwargs)) if isinstance(x, Tensor)}

        def is_new(x: Any) -> bool:
            return isinstance(x, Tensor) and storage_id(x) not in given

        made = [is_new(x) for x in leaves_of(out)]
        if not any(made) and not func._schema.is_mutable:
            return out
        if any(made):
            taken: dict[int, np.ndarray] = {}
            out = mapped(lambda x: self._moved(x, taken) if is_new(x) else x, out)
        again, *into = mapped(self._held, ((args, kwargs), *leaves_of(out)))
        if func._schema.name.removeprefix("aten::") not in EMPTY:
            self.note(partial(_redo, func, again, into, made), func)
        return out

    def _moved(self, x: Tensor, taken: dict[int, np.ndarray]) -> Tensor:
        """The same in memory that is held; results that share one storage share one again."""
        storage = x.untyped_storage()
        if not storage.nbytes():
            return x
        key = storage_id(x)
        if key not in taken:
            taken[key] = memory = torch.empty(storage.nbytes(), dtype=torch.uint8).numpy()
            self._memory[memory.ctypes.data] = memory
            torch.from_numpy(memory).untyped_storage().copy_(storage)
        return _tensor(taken[key], x)


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same lists, tuples and dictionaries of what ``change`` makes of the leaves."""
    if isinstance(tree, list | tuple):
        return type(tree)([mapped(change, part) for part in tree])
    if isinstance(tree, dict):
        return {key: mapped(change, part) for key, part in tree.items()}
    return change(tree)


def _tensor(memory: np.ndarray, x: Tensor) -> Tensor:
    """A tensor of x's form in a memory, by a storage of its own."""
    made = torch.empty(0, dtype=x.dtype)
    return made.set_(torch.from_numpy(memory).untyped_storage(), x.storage_offset(), x.shape, x.stride())


@torch.no_grad()
def _redo(func: Any, given: tuple[Any, Any], into: list[Any], made: list[bool]) -> None:
    """What an operation made lies where it lay."""
    args, kwargs = given
    for new, old, moves in zip(leaves_of(func(*args, **kwargs)), into, made, strict=True):
        if moves:
            old.copy_(new)


class Frozen:
    """What a recording has."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def replay(self) -> None:
        moments: dict[Event, Event] = {}
        for queue, step in self._recording.steps:
            if isinstance(step, list):
                queue.run(partial(_do, step))
            elif isinstance(step, tuple):
                if step[0] in moments:  # else it had come before
                    queue.wait(moments[step[0]], step[1])
            else:
                moments[step] = queue.record()


def _do(step: list[Work]) -> None:
    for work in step:
        work()


class NotedLauncher(HostLauncher):
    """One whose launches are written down while there is a recording."""

    recording: Recording | None = None

    def launch(self, name: Any, grid: Any, block: Any, args: Any, stream: Any, tensors: Any) -> None:
        if self.recording is not None:
            memories = [self.recording.memory(x) for x in tensors]
            held: Any = [x if memory is None else memory for x, memory in zip(tensors, memories, strict=True)]
            self.recording.note(partial(super().launch, name, grid, block, tuple(args), None, held), name)
        super().launch(name, grid, block, args, stream, tensors)


class RecordingQueue(Queue):
    """A queue that has what it is given written down, while there is a recording.

    Attributes:
        on_host: it is the host's own.
    """

    _scheduler: RecordingScheduler
    on_host = False

    def run(self, work: Work) -> None:
        recording = self._scheduler.recording
        super().run(work if recording is None else recording.taken(self, work, on_host=self.on_host))

    def record(self) -> QueueEvent:
        moment = super().record()
        if self._scheduler.recording is not None:
            self._scheduler.recording.steps.append((self, moment))
        return moment

    def wait(self, event: Event, why: str) -> None:
        super().wait(event, why)
        if isinstance(event, QueueEvent) and self._scheduler.recording is not None:
            self._scheduler.recording.steps.append((self, (event, why)))

    def change(self, change: Callable[[Work], Work]) -> None:
        """Do something else in place of every piece of work that it has been given and not done."""
        self._work = deque(x if isinstance(x, QueueEvent | tuple) else change(x) for x in self._work)


class RecordingScheduler(Scheduler):
    """Its queues have what they are given written down.

    Attributes:
        recording: where, or None.
    """

    recording: Recording | None = None
    _queues: list[RecordingQueue]  # type: ignore[assignment]

    def queue(self) -> RecordingQueue:
        self._queues.append(RecordingQueue(self, SLOWEST ** self._random.random()))
        return self._queues[-1]

    def each_given(self, change: Callable[[Work], Work]) -> None:
        """Have queues do something else in place of what they have been given and not done."""
        for queue in self._queues:
            queue.change(change)


class FrozenRecorder:
    """Captures what a scheduler's queues are given, and what a launcher launches for them."""

    def __init__(self, scheduler: RecordingScheduler, launcher: NotedLauncher) -> None:
        self._scheduler, self._launcher = scheduler, launcher
        self._memory: WeakValueDictionary[int, np.ndarray] = WeakValueDictionary()

    def capture(self, work: Callable[[], None], drain: Callable[[], None]) -> Frozen:
        with self._recording() as recording:
            work()
            self._scheduler.recording = None  # what is waited for below is no part of it
            drain()
        return Frozen(recording)

    @contextmanager
    def _recording(self) -> Iterator[Recording]:
        recording = Recording(self._memory)
        self._scheduler.each_given(lambda work: recording.noted(work, []))  # what was given before is no part of it
        self._scheduler.recording = self._launcher.recording = recording
        try:
            with recording:
                yield recording
        finally:
            self._scheduler.recording = self._launcher.recording = None

    def beside(self) -> nullcontext[None]:
        return nullcontext()

    def forget(self) -> None:
        pass


class CapturingBackend(SimulatedBackend):
    """GPUs played by the CPU that capture passes that repeat: done again operation by operation, in memory that nobody
    else gets."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: RecordingScheduler = RecordingScheduler()
        self._launcher = NotedLauncher()
        self.kernels = CudaKernels(self._launcher)

    def recorder(self, devices: list[Device]) -> FrozenRecorder:
        for stream in (devices[0].streams.host, devices[0].streams.disk):
            stream.on_host = True  # type: ignore[attr-defined]
        return FrozenRecorder(self.scheduler, self._launcher)
