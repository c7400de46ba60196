"""What stands between tensors and a kernel: checks, launch shapes, launchers. No GPU."""

import ctypes
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hongtu.cuda_ext import arguments, driver, host_build, kernels
from hongtu.cuda_ext.arguments import HUB, block_of
from hongtu.cuda_ext.compile import FOLDER, KERNELS_OF, KernelError
from hongtu.cuda_ext.host_build import HostLauncher
from hongtu.cuda_ext.launch import CudaLauncher, _Buffers
from tests.kernel_machine import Machine, skip_without_compiler
from tests.kernel_parity import CscParity, RowParity, graph_of, random

needs_compiler = pytest.mark.usefixtures("_compiler")


@pytest.fixture
def _compiler():
    skip_without_compiler()


class Recorder:
    """A launcher that only notes what is launched."""

    on_gpu = False

    def __init__(self):
        self.launches = []

    def launch(self, name, grid, block, args, stream, tensors):
        self.launches.append(SimpleNamespace(name=name, grid=grid, block=block, args=args, tensors=tensors))


def index(count):
    return torch.arange(count, dtype=torch.int32)


def call_all(launcher, width, dtype, num_dst=3, degree=2, shift=0):
    """Every kernel once."""

    def rows(count, columns=width):
        return torch.zeros(shift + count * columns, dtype=dtype)[shift:].view(count, columns)

    num_edges, heads, both = num_dst * degree, min(width, 1), (launcher, None)
    indptr, source = torch.arange(num_dst + 1) * degree, index(num_edges) % max(1, num_dst)
    kernels.copy_rows(*both, rows(num_dst), index(num_dst), rows(num_dst), index(num_dst))
    if dtype == torch.float32:
        halves = torch.zeros(shift + num_dst * width, dtype=torch.bfloat16)[shift:].view(num_dst, width)
        for src, dst in ((halves, rows(num_dst)), (rows(num_dst), halves), (halves, halves)):
            kernels.copy_rows(*both, src, None, dst, None)
    kernels.gather_rows(*both, rows(num_dst), index(num_dst), rows(num_dst))
    for how in ("plain", "atomic", "system"):
        kernels.add_rows(*both, rows(num_dst), None, rows(num_dst), None, how)
    kernels.scatter_add_rows(*both, rows(num_dst), index(num_dst), rows(num_dst))
    kernels.scatter_add_edges(*both, index(num_dst), rows(num_dst), rows(num_dst))
    kernels.zero_rows(*both, rows(num_dst), None)
    kernels.csc_aggregate(*both, indptr, source, None, None, False, rows(num_dst), rows(num_dst))
    kernels.csc_aggregate_transpose(*both, indptr, source, None, None, False, rows(num_dst), rows(num_dst))
    kernels.segment_sum(*both, indptr, rows(num_edges), rows(num_dst))
    kernels.expand_rows(*both, indptr, rows(num_dst), rows(num_edges))
    kernels.dropout(*both, rows(num_dst), torch.arange(num_dst), torch.arange(1), 1, 2, 2**31, 2.0, rows(num_dst))
    shares = rows(num_edges, heads)
    kernels.segment_softmax(*both, indptr, shares, None, None, rows(num_edges, heads), None)
    kernels.segment_softmax_backward(*both, indptr, shares, None, shares, None, rows(num_edges, heads), None)
    kernels.attend(*both, indptr, source, shares, rows(num_dst), rows(num_dst))
    kernels.attend_transpose(*both, indptr, source, shares, rows(num_dst), rows(num_dst))
    kernels.attend_alpha_gradient(*both, indptr, source, rows(num_dst), rows(num_dst), rows(num_edges, heads))
    gates = (*both, indptr, source, rows(num_dst), rows(num_dst, 2 * width))
    kernels.gated_sum(*gates, rows(num_dst))
    kernels.gated_sum_key_gradient(*gates, rows(num_dst), rows(num_dst))
    kernels.gated_sum_transpose(*gates, rows(num_dst), rows(num_dst, 2 * width))


@needs_compiler
def test_every_instance_of_a_kernel_is_launched_somewhere():
    recorder = Recorder()
    for dtype in (torch.float32, torch.float64):
        call_all(recorder, width=8, dtype=dtype)
        call_all(recorder, width=8, dtype=dtype, shift=1)
    built = set()
    for file in KERNELS_OF:
        built |= set(re.findall(rb"\0(\w+)_on_cpu(?=\0)", host_build.library(FOLDER / file).read_bytes()))
    assert {launch.name.encode() for launch in recorder.launches} == built


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_launched_for_empty_inputs(dtype):
    recorder = Recorder()
    call_all(recorder, width=5, dtype=dtype, num_dst=0)
    call_all(recorder, width=0, dtype=dtype)
    assert recorder.launches == []
    call_all(recorder, width=5, dtype=dtype, degree=0)
    overwriting = {"csc_aggregate", "segment_sum", "attend", "gated_sum", "gated_sum_key_gradient", "dropout"}
    of_edges = {launch.name.rsplit("_", 1)[0] for launch in recorder.launches} - set(KERNELS_OF["rows.cu"])
    assert {name for name in of_edges if not re.match("copy_rows|segment_softmax", name)} == overwriting


def test_hubs_take_a_second_launch_only_where_there_can_be_one():
    for degree, count in ((HUB // 2, 1), (HUB // 2 + 1, 2)):
        recorder = Recorder()
        call_all(recorder, width=4, dtype=torch.float32, num_dst=2, degree=degree)
        assert sum(launch.name == "csc_aggregate_f32x4" for launch in recorder.launches) == count
        assert sum(launch.name == "segment_softmax_f32x1" for launch in recorder.launches) == 3 * count - 2
        assert all(
            (launch.tensors[-1] is None) == (count == 1) for launch in recorder.launches if "softmax" in launch.name
        )


def test_nothing_is_launched_for_hubs_of_destinations_that_are_known_to_have_none():
    recorder, indptr = Recorder(), torch.tensor([0, HUB, 2 * HUB])
    rows, out = torch.zeros(2 * HUB, 4), torch.zeros(2, 4)

    def stages(of):
        recorder.launches.clear()
        kernels.segment_sum(recorder, None, of, rows, out)
        return [launch.args[-1] for launch in recorder.launches]

    with arguments.knowing_hubs():
        assert stages(indptr) == [0, 1]
        arguments.has_no_hub(indptr)
        assert stages(indptr) == [0] and stages(indptr.clone()) == [0, 1]
    assert stages(indptr) == [0, 1]


@pytest.mark.parametrize("units,block", [(1, (1, 256)), (2, (2, 128)), (3, (4, 64)), (17, (32, 8)), (256, (32, 8))])
def test_narrow_rows_share_a_warp(units, block):
    assert block_of(units) == block


def test_bad_tensors_are_refused_before_a_launch():
    on_gpu = SimpleNamespace(on_gpu=True, launch=lambda *_: pytest.fail("launched"))
    on_cpu = SimpleNamespace(on_gpu=False, launch=lambda *_: pytest.fail("launched"))
    rows, indptr, source = torch.zeros(4, 6), torch.tensor([0, 1, 2]), index(2)
    out = torch.zeros(2, 6)
    for message, call in {
        r"copy_rows: dtypes of src and dst: found .*int32": lambda: kernels.copy_rows(
            on_cpu, None, index(4), None, out, None
        ),
        r"src_index: found torch.int64": lambda: kernels.gather_rows(on_cpu, None, rows, torch.arange(2), out),
        r"shape of dst: found \(2, 6\), expected \(4, 6\)": lambda: kernels.copy_rows(
            on_cpu, None, rows, None, out, None
        ),
        r"shape of dst: found \(4, 5\)": lambda: kernels.copy_rows(on_cpu, None, rows, None, torch.zeros(4, 5), None),
        r"strides of dst": lambda: kernels.zero_rows(on_cpu, None, torch.zeros(6, 4).T, None),
        r"strides of alpha": lambda: kernels.attend(on_cpu, None, indptr, source, torch.zeros(2, 4)[:, :2], rows, out),
        r"strides of rows": lambda: kernels.attend(
            on_cpu, None, indptr, source, torch.zeros(2, 2), rows[:1].expand(4, 6), out
        ),
        r"device of dst: found cpu, expected a GPU": lambda: kernels.zero_rows(on_gpu, None, rows, None),
        r"dtype of out: found torch.float16": lambda: kernels.csc_aggregate(
            on_cpu, None, indptr, source, None, None, False, rows, out.half()
        ),
        r"shape of indptr: found \(3,\), expected \(5,\)": lambda: kernels.segment_sum(on_cpu, None, indptr, out, rows),
        r"shape of weight: found \(3,\)": lambda: kernels.csc_aggregate(
            on_cpu, None, indptr, source, None, torch.ones(3), False, rows, out
        ),
        r"heads of alpha: found 4, expected a divisor of the width 6": lambda: kernels.attend(
            on_cpu, None, indptr, source, torch.zeros(2, 4), rows, out
        ),
        r"columns of rows: found 5, expected 6 or more": lambda: kernels.attend(
            on_cpu, None, indptr, source, torch.zeros(2, 3), torch.zeros(4, 5), out
        ),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_a_gpu_reads_rows_of_the_host():
    recorder = Recorder()
    recorder.on_gpu = True
    on_gpu = SimpleNamespace(is_cuda=True, dtype=torch.float32, shape=torch.Size([2, 4]), data_ptr=lambda: 4096)
    on_gpu.is_contiguous, on_gpu.itemsize = lambda: True, 4
    kernels.copy_rows(recorder, None, torch.zeros(2, 4), None, on_gpu, None)
    assert [launch.name for launch in recorder.launches] == ["copy_rows_f32x4"]


@needs_compiler
def test_the_cpu_refuses_what_a_gpu_would():
    rows = torch.zeros(9)
    args = (rows[1:].data_ptr(), 0, 4, 2, 4)
    with pytest.raises(KernelError, match=r"zero_rows_f32x4 .* misaligned"):
        HostLauncher().launch("zero_rows_f32x4", (1, 1), (1, 256), args, None, ())
    with pytest.raises(KernelError, match=r"zero_rows_f32x1 .* arguments"):
        HostLauncher().launch("zero_rows_f32x1", (1, 1), (1, 256), args[:3], None, ())
    with pytest.raises(KernelError, match=r"zero_rows_f32x3 is not in rows\.cu"):
        HostLauncher().launch("zero_rows_f32x3", (1, 1), (1, 256), args, None, ())


LANES = """#include "shared.cuh"
WARP_KERNEL(zero_rows_f32x1, (float* to), to[threadIdx.x] = sum_over_lanes(to[threadIdx.x], 4))
WARP_KERNEL(zero_rows_f32x4, (float* to), if (threadIdx.x < 3) to[threadIdx.x] = sum_over_lanes(to[threadIdx.x], 4))
WARP_KERNEL(zero_rows_f64x1, (float* to), __shfl_xor_sync(0xffu << 8, to[threadIdx.x], 1))
WARP_KERNEL(zero_rows_f64x2, (float* to), __shfl_xor_sync(0xffu, to[threadIdx.x], 8))
"""


@needs_compiler
@pytest.mark.parametrize("descending", [False, True])
def test_lanes_exchange_values_in_step(tmp_path, descending):
    (tmp_path / "shared.cuh").write_text((FOLDER / "shared.cuh").read_text())
    (tmp_path / "rows.cu").write_text(LANES)
    launcher, values = HostLauncher(descending, tmp_path), torch.arange(8.0)
    launcher.launch("zero_rows_f32x1", (1, 1), (8, 1), [values.data_ptr()], None, ())
    assert values.tolist() == [6.0] * 4 + [22.0] * 4
    for wrong in ("f32x4", "f64x1", "f64x2"):  # three of eight lanes; another group's mask; another group's lane
        with pytest.raises(KernelError, match="not all lanes of a group come to"):
            launcher.launch(f"zero_rows_{wrong}", (1, 1), (8, 1), [values.data_ptr()], None, ())


@needs_compiler
def test_a_queue_runs_kernels_later():
    rows, queue = torch.ones(3, 4), []
    kernels.zero_rows(HostLauncher(), queue.append, rows, index(2))
    assert rows.all()
    queue.pop()()
    assert rows.sum(1).tolist() == [0, 0, 4]


@needs_compiler
@pytest.mark.parametrize("graph,width", [("mixed", 7), ("hubs", 4), ("hubs", 33)])
def test_the_order_of_threads_does_not_matter(graph, width):
    machine = Machine(HostLauncher(descending=True), None, "cpu")
    RowParity().test_copy_rows(machine, width, np.float32, 0)
    CscParity().test_csc_aggregate(machine, graph, width, np.float64, 0)
    indptr, _, _ = graph_of(graph)
    logits, none = 30 * random(indptr[-1], 2), np.empty((0, 2))
    inputs, out = [indptr, logits, np.empty(0, bool), none], [np.empty_like(logits), none]
    orders = [machine, Machine(HostLauncher(), None, "cpu")]
    a, b = (each.run(kernels.segment_softmax, inputs, out)[0] for each in orders)
    np.testing.assert_allclose(a, b, rtol=1e-12)


@needs_compiler
def test_cuda_launcher_hands_the_driver_what_the_kernel_expects(monkeypatch):
    """A driver that runs on the CPU stands in for the real one."""
    host_launcher, seen = HostLauncher(), []

    def launch_kernel(kernel, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        count = ARGUMENTS[kernel.split("_f")[0]]
        slots = (ctypes.c_void_p * count).from_address(parameters)
        args = [ctypes.c_int64.from_address(slot).value for slot in slots]
        assert (gz, bz, shared, extra) == (1, 1, 0, 0)
        seen.append((kernel, stream))
        if entered:
            host_launcher.launch(kernel, (gx, gy), (bx, by), args, None, ())
        return (status if entered else 201,)

    status, entered = 0, []
    launcher = object.__new__(CudaLauncher)
    launcher.device, launcher._buffers = 0, _Buffers()
    launcher._kernels = {name: name for name in ("csc_aggregate_f32x4", "csc_aggregate_transpose_f32x1")}
    launcher._driver = SimpleNamespace(
        cuLaunchKernel=launch_kernel, CUresult=SimpleNamespace(CUDA_ERROR_INVALID_CONTEXT=201)
    )
    monkeypatch.setattr(driver, "enter", lambda gpu: entered.append(gpu) or True)  # a thread without a context
    monkeypatch.setattr(CudaLauncher, "on_gpu", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    CscParity().test_csc_aggregate(Machine(launcher, 77, "cpu"), "hubs", 4, np.float32, 0)
    assert len(seen) == 17 and {stream for _, stream in seen} == {77} and entered == [0]
    status = 700
    with pytest.raises(KernelError, match=r"csc_aggregate_f32x4 .* on GPU 0: 700"):
        CscParity().test_csc_aggregate(Machine(launcher, 77, "cpu"), "mixed", 4, np.float32, 0)


ARGUMENTS = {"csc_aggregate": 13, "csc_aggregate_transpose": 13}


def test_cuda_launcher_loads_a_file_once_and_says_what_fails(monkeypatch):
    loaded, status = [], [0, 0]
    launcher = object.__new__(CudaLauncher)
    launcher.device, launcher.arch, launcher._kernels, launcher._files = 0, "sm_90", {}, {}
    launcher._driver = SimpleNamespace(
        cuLibraryLoadData=lambda code, *none: (status[0], loaded.append((code, none)) or "library"),
        cuLibraryGetKernel=lambda library, name: (status[1], len(name)),
        CUfunction=lambda handle: ("function", handle),
    )
    monkeypatch.setattr("hongtu.cuda_ext.launch.cubin", lambda file, arch: b"machine code")
    status[0] = 209
    with pytest.raises(KernelError, match=r"machine code of rows\.cu for sm_90 on GPU 0: 209"):
        launcher._load("zero_rows_f32x4")
    status[:] = 0, 500
    with pytest.raises(KernelError, match=r"kernel zero_rows_f32x4 of rows\.cu, compiled for sm_90: 500"):
        launcher._load("zero_rows_f32x4")
    status[1] = 0
    assert launcher._load("zero_rows_f32x4") == launcher._kernels["zero_rows_f32x4"] == ("function", 15)
    assert launcher._load("zero_rows_f32x1") and loaded == [(b"machine code", ([], [], 0, [], [], 0))] * 2


def test_cuda_launcher_without_a_gpu_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(KernelError, match=r"CUDA device 0: torch .* finds 0|pip install"):
        CudaLauncher(0)
