"""What layers take is counted for every chunk at first, and later for those that a limit depends on."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hongtu.device.cpu import CpuDevice
from hongtu.device.layer_memory import Sample, WorkspaceTracker
from hongtu.kernels.dispatch import NumbaKernels, as_on_gpu
from hongtu.metrics import Traffic


def test_a_sample_has_every_chunk_first_then_all_in_turn_and_the_largest_more_often() -> None:
    sample, seen = Sample(), []
    for run in range(2 * Sample.EVERY):
        counted = [chunk for chunk in range(5) if sample.takes("forward 0", chunk, most=True)]
        for chunk in range(5):
            if chunk in counted:
                sample.counted("forward 0", chunk, 300 if chunk == 3 else 100, substituted=False)
            else:
                sample.ran("forward 0", chunk)
        seen.append(counted)
        assert run > 0 or counted == list(range(5))
    often = Sample.EVERY // Sample.OFTEN
    assert sorted(x for counted in seen[1 : 1 + Sample.EVERY] for x in counted) == [0, 1, 2, *[3] * often, 4]


@pytest.mark.parametrize("budget", [None, 10_000])
def test_a_device_counts_the_largest_chunk_more_often_where_a_budget_stands(budget: int | None) -> None:
    """Without a budget it takes for granted that it takes what it took, above what is there."""
    device, stays, counted = CpuDevice("device 0", budget, Traffic()), [], 0
    for epoch in range(2 * Sample.EVERY):
        device.reset_peaks()
        for chunk, floats in enumerate((10, 70, 30)):
            with device.computing("forward 0", chunk):
                assert (_get_current_dispatch_mode() is not None) or epoch
                counted += chunk == 1 and _get_current_dispatch_mode() is not None
                torch.ones(floats)
        assert device.workspace.peak == 4 * (70 + 5 * len(stays)) and device.peak == device.workspace.peak
        if epoch == 3:
            stays.append(torch.ones(5))
            device.workspace.count(stays[0])
    assert counted == 1 + 2 * Sample.EVERY // (Sample.EVERY if budget is None else Sample.OFTEN)


def test_operations_are_looked_at_only_where_somebody_counts_or_replaces_them() -> None:
    device, product = CpuDevice("device 0", None, Traffic()), torch.ops.aten.mm.default
    device.workspace = WorkspaceTracker(lambda live: None, {product: lambda a, b: product(a, b) + 1})
    a, looked = torch.ones(2, 2), {}
    for run in range(2):
        for name, operation in (("forward 0", torch.mm), ("fused 1", torch.add)):
            for chunk in range(2):
                with device.computing(name, chunk):
                    looked[run, name, chunk] = _get_current_dispatch_mode() is not None
                    assert torch.equal(operation(a, a), a + a + 1 if operation is torch.mm else a + a)
    assert all(looked[0, name, chunk] for name in ("forward 0", "fused 1") for chunk in range(2))
    assert looked[1, "forward 0", 1] and not looked[1, "fused 1", 1]


def test_what_the_transpose_needs_on_the_way_counts_except_for_a_gpu_that_does_without() -> None:
    indptr, source = torch.tensor([0, 2, 5]), torch.tensor([0, 1, 0, 1, 2], dtype=torch.int32)
    none, grad, out = torch.empty(0, dtype=torch.int32), torch.ones(2, 64), torch.zeros(3, 64)
    kernels = NumbaKernels(plain=False)
    tracker = WorkspaceTracker(lambda live: None)
    for mean in (False, True):  # compiled here: a compiler keeps what it was called with for a while
        kernels.csc_aggregate_transpose(indptr, source, none, grad[:0, 0], mean, grad, torch.zeros(3, 64))
    for mean, nbytes in ((False, 8 * 4 + 4 * 5), (True, 8 * 4 + 4 * 5 + 4 * 5)):
        tracker.reset_peak()
        with tracker:
            kernels.csc_aggregate_transpose(indptr, source, none, grad[:0, 0], mean, grad, out)
        assert tracker.peak == nbytes and tracker.live == 0
    tracker.reset_peak()
    with tracker, as_on_gpu():
        kernels.csc_aggregate_transpose(indptr, source, none, grad[:0, 0], True, grad, out)
    assert tracker.peak == 0
    start, rows = torch.zeros(3, dtype=torch.int64), torch.zeros(1000, 64)
    tracker.reset_peak()
    with tracker:  # a chunk without in-edges has no slots either
        kernels.csc_aggregate_transpose(start, source[:0], none, grad[:0, 0], True, grad, rows)
    assert tracker.peak == 0


def test_no_interrupt_comes_between_a_tensor_and_its_being_forgotten() -> None:
    """Python would drop it, and what was not forgotten would count for ever."""
    tracker = WorkspaceTracker(lambda live: None)
    with tracker:
        x = torch.ones(70)
    assert tracker.live == 4 * 70

    def interrupt(frame: Any, event: str, arg: Any) -> Any:
        if "hongtu" in frame.f_code.co_filename:
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    del x
    sys.settrace(before)
    assert tracker.live == 0
