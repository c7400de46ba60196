"""Which kernels run on a tensor: numba's on the CPU, CUDA's on a GPU, and CUDA's on the CPU where a GPU is simulated.

On small graphs numba's would take longer to compile than to train, so that their plain twins run on the CPU, which add
in another order. So which of them do is chosen once for a graph, never by what has been compiled; for what belongs to
no graph, by the length of what a call is given.

All have the names and arguments of the modules beside this one, with tensors: contiguous (CUDA's take rows of features
that are apart, too), without gradients, of length 0 for "none". What a kernel of numba needs on the way is made here,
where it counts as what layers allocate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import Tensor, cuda, empty, uint8

from hongtu import compiled
from hongtu.compiled import SMALL
from hongtu.cuda_ext.arguments import HUB as HUB  # in-edges above which CUDA kernels cut a destination into slices
from hongtu.cuda_ext.arguments import has_no_hub as has_no_hub
from hongtu.cuda_ext.arguments import has_rows
from hongtu.cuda_ext.arguments import knowing_hubs as knowing_hubs
from hongtu.hardware import LANE, padded
from hongtu.kernels import attention, reductions, reference, rows, sums

T = TypeVar("T")


class Kernels(Protocol):
    """Kernels by name."""

    def __getattr__(self, name: str) -> Callable[..., None]: ...


class NumbaKernels:
    """The kernels for CPU tensors.

    Args:
        plain: whether their plain twins run; None: for calls none of whose tensors has more than ``SMALL`` rows.
    """

    def __init__(self, plain: bool | None = None) -> None:
        self.plain = False if compiled.ALWAYS else plain

    @classmethod
    def of_graph(cls, size: int | None) -> Kernels:
        """Those for a graph with so many edges and vertices; None: with as many as a call is given."""
        return cls(None if size is None else size <= SMALL)

    def __getattr__(self, name: str) -> Callable[..., None]:
        modules = rows, sums, attention, reductions
        found = next((getattr(module, name) for module in modules if hasattr(module, name)), None)
        if found is None:
            raise AttributeError(name)
        call = partial(self._with_arrays, name, found, getattr(reference, name, None))
        setattr(self, name, call)
        return call

    def _with_arrays(
        self, name: str, kernel: Callable[..., None], twin: Callable[..., None] | None, *args: Any
    ) -> None:
        for watch in _watching:
            watch(name, args)
        arrays, apart = [arg.numpy() if isinstance(arg, Tensor) else arg for arg in args], []
        for k, arg in enumerate(args):
            if isinstance(arg, Tensor) and not arg.is_contiguous():
                apart.append((arrays[k], np.ascontiguousarray(arrays[k])))
                arrays[k] = apart[-1][1]
        if twin is not None and self._runs_plainly(args):
            with np.errstate(all="ignore"):  # an infinite number, or none, is the model's, as in torch
                twin(*arrays)
        elif getattr(kernel, "takes_empty", False):
            kernel(*arrays, np.empty if _as_on_gpu[-1] else _counted_empty)
        else:
            kernel(*arrays)
        for given, copied in apart:
            given[...] = copied

    def _runs_plainly(self, args: tuple[Any, ...]) -> bool:
        if self.plain is None:
            return max(arg.shape[0] for arg in args if isinstance(arg, Tensor)) <= SMALL
        return self.plain


def _counted_empty(count: int, dtype: Any) -> np.ndarray:
    """An array that counts as what layers allocate; GPUs' kernels do without."""
    return empty(count * np.dtype(dtype).itemsize, dtype=uint8).numpy().view(dtype)


class CudaKernels:
    """The kernels of ``hongtu.cuda_ext``.

    Args:
        launcher: for a GPU, or for the CPU in its place.
    """

    def __init__(self, launcher: Any) -> None:
        self.launcher = launcher

    def __getattr__(self, name: str) -> Callable[..., None]:
        from hongtu.cuda_ext import kernels

        found = getattr(kernels, name)

        def call(*args: Any, **options: Any) -> None:
            stream = cuda.current_stream().cuda_stream if self.launcher.on_gpu else None
            found(self.launcher, stream, *args, **options)

        setattr(self, name, call)
        return call


NUMBA: Kernels = NumbaKernels()
_for_cpu: list[Kernels] = [NUMBA]
_as_on_gpu = [False]
_watching: list[Callable[[str, tuple[Any, ...]], None]] = []


def in_use() -> Kernels:
    """The kernels that run on CPU tensors now."""
    return _for_cpu[-1]


def kernels_key() -> tuple[Any, ...]:
    """What tells apart the ways in which layers may run on CPU tensors now."""
    return type(in_use()), getattr(in_use(), "plain", None), _as_on_gpu[-1]


def kernels_for(tensor: Tensor) -> Kernels:
    """The kernels that run on a tensor."""
    return _on_gpu(tensor.get_device()) if tensor.is_cuda else _for_cpu[-1]


@contextmanager
def _pushed(stack: list[T], value: T) -> Iterator[None]:
    """While it is entered, a value is the last of a stack: by a generator, which an interrupt at any line ends, or
    the end of what is around it."""
    depth = len(stack)
    stack.append(value)
    try:
        yield
    finally:
        del stack[depth:]


def using(chosen: Kernels) -> AbstractContextManager[None]:
    """Run these kernels on CPU tensors."""
    return _pushed(_for_cpu, chosen)


def watching(call: Callable[[str, tuple[Any, ...]], None]) -> AbstractContextManager[None]:
    """Inside, show the name and the arguments of every kernel that runs on CPU tensors."""
    return _pushed(_watching, call)


def on_numba(tensor: Tensor) -> bool:
    """Whether numba's kernels run on a tensor, but for what another library does in their place."""
    return isinstance(kernels_for(tensor), NumbaKernels)


def has_numba_kernel(tensor: Tensor) -> bool:
    """Whether a kernel that only the CPU has runs on a tensor; else torch does its work."""
    return on_numba(tensor) and not _as_on_gpu[-1]


def as_on_gpu(wanted: bool = True) -> AbstractContextManager[None]:
    """Inside, CPU tensors do without the kernels that only the CPU has, and so take the memory that a GPU's would."""
    return _pushed(_as_on_gpu, wanted)


def new_rows(like: Tensor, count: int, columns: int, *, zero: bool = False) -> Tensor:
    """[count, columns] for a kernel to write, with undefined content or zeros: on a GPU apart, as ``padded`` says."""
    step = columns if has_numba_kernel(like) else padded(columns, like.itemsize)
    made = (like.new_zeros if zero else like.new_empty)((count, step))
    return made if step == columns else made[:, :columns].data  # no view for autograd, which users may write to


def plain(tensor: Tensor) -> Tensor:
    """What kernels take: contiguous, without a gradient."""
    return tensor.detach().contiguous()


def plain_rows(rows: Tensor) -> Tensor:
    """The same of rows of features, which may be apart on a GPU."""
    found = rows.detach()
    return found if not has_numba_kernel(found) and has_rows(found) else found.contiguous()


def laned(rows: Tensor) -> Tensor:
    """The same of those that a kernel reads for every edge: on a GPU a copy, where lanes of 16 bytes are aligned in it
    and not in these."""
    found, columns = plain_rows(rows), rows.shape[1]
    if has_numba_kernel(rows):
        return found
    can_be = padded(columns, rows.itemsize) * rows.itemsize % LANE == 0
    are = (found.stride(0) * found.itemsize | found.data_ptr()) % LANE == 0
    return new_rows(rows, len(rows), columns).copy_(found) if can_be and not are else found


@cache
def _on_gpu(index: int) -> Kernels:
    from hongtu.cuda_ext.launch import CudaLauncher

    return CudaKernels(CudaLauncher(index))


class SparseProducts(NumbaKernels):
    """Kernels for CPU tensors, but for the weighted sum over in-edges and its transpose: these are products of
    torch-sparse."""

    def csc_aggregate(
        self, indptr: Tensor, local_source: Tensor, slot_of_source: Tensor, weight: Tensor, mean: bool,
        rows_CF: Tensor, out_DF: Tensor,
    ) -> None:  # fmt: skip
        """See :func:`hongtu.kernels.sums.csc_aggregate`."""
        source = local_source.long()
        column = slot_of_source.long()[source] if len(slot_of_source) else source
        out_DF.copy_(_matrix(indptr, column, weight, len(rows_CF)).matmul(rows_CF))
        if mean:
            out_DF.div_(_degree(indptr, out_DF))

    def csc_aggregate_transpose(
        self, indptr: Tensor, local_source: Tensor, slot_of_source: Tensor, weight: Tensor, mean: bool,
        grad_DF: Tensor, out_CF: Tensor,
    ) -> None:  # fmt: skip
        """See :func:`hongtu.kernels.sums.csc_aggregate_transpose`."""
        if not len(local_source):
            return
        given = grad_DF / _degree(indptr, grad_DF) if mean else grad_DF
        sources = len(slot_of_source) or len(out_CF)
        added_SF = _matrix(indptr, local_source.long(), weight, sources).t().matmul(given)
        if len(slot_of_source):
            out_CF.index_add_(0, slot_of_source, added_SF)
        else:
            out_CF.add_(added_SF)


def _matrix(indptr: Tensor, column: Tensor, weight: Tensor, columns: int) -> Any:
    """[D, columns]: an entry for each edge."""
    from torch_sparse import SparseTensor

    return SparseTensor(
        rowptr=indptr, col=column, value=weight if len(weight) else None, sparse_sizes=(len(indptr) - 1, columns),
        is_sorted=True, trust_data=True,
    )  # fmt: skip


def _degree(indptr: Tensor, like: Tensor) -> Tensor:
    """[D, 1]: in-edges, at least 1."""
    return indptr.diff().clamp(min=1).to(like.dtype).unsqueeze(1)
