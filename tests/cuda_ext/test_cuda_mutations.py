"""An off-by-one in any kernel makes a parity test fail; ``python -m tests.kernel_mutations`` tries hundreds."""

import re
import shutil

import numpy as np
import pytest

from hongtu.cuda_ext import host_build
from hongtu.cuda_ext.compile import FOLDER, KERNELS_OF, KernelError
from tests.kernel_machine import Machine, skip_without_compiler
from tests.kernel_parity import AttentionParity, CscParity, DropoutParity, RowParity
from tests.mutations import Edit, edited

ROWS, CSC, ATTENTION, DROPOUT = RowParity(), CscParity(), AttentionParity(), DropoutParity()
F4 = np.float32

# kernel -> file, what to replace there, by what, and the case that must then fail
EDITS = {
    "copy_rows": ("rows.cu", "f < longest + width;", "f < longest + width - 1;", (ROWS.test_copy_rows, 5, F4, 0)),
    "add_rows": (
        "rows.cu",
        "store_some<N>(dst + to[i] * dst_stride + f, sum[i]",
        "store_some<N>(dst + to[i] * dst_stride + f + 1, sum[i]",
        (ROWS.test_add_rows, 5, F4, 0, "plain"),
    ),
    "zero_rows": (
        "rows.cu",
        "k < count; k += group_step())",
        "k < count - 1; k += group_step())",
        (ROWS.test_zero_rows, 5, F4, 0),
    ),
    "csc_aggregate": (
        "csc.cu",
        "rows + slot * rows_stride",
        "rows + slot * (rows_stride - 1)",
        (CSC.test_csc_aggregate, "mixed", 5, F4, 0),
    ),
    "csc_aggregate_transpose": (
        "csc.cu",
        "out + slot * out_stride + f,",
        "out + slot * out_stride + f - 1,",
        (CSC.test_csc_aggregate, "mixed", 5, F4, 0),
    ),
    "segment_sum": ("csc.cu", "x + e * x_stride", "x + e * (x_stride - 1)", (CSC.test_segments, "mixed", 5, F4, 0)),
    "expand_rows": (
        "csc.cu",
        "out + e * out_stride + f",
        "out + e * out_stride + f - 1",
        (CSC.test_segments, "mixed", 5, F4, 0),
    ),
    "segment_softmax": (
        "softmax.cu",
        "if (kept(e)) out[e * heads + h]",
        "if (kept(e)) out[e * heads + h - 1]",
        (ATTENTION.test_softmax, "mixed", 3, F4, 0),
    ),
    "segment_softmax_backward": (
        "softmax.cu",
        "grad_logits[e * heads + h] =",
        "grad_logits[e * heads + h - 1] =",
        (ATTENTION.test_softmax, "mixed", 3, F4, 0),
    ),
    "attend": (
        "attention.cu",
        "rows + source * rows_stride",
        "rows + source * (rows_stride - 1)",
        (ATTENTION.test_attend, 3, 5, 1, F4, 0),
    ),
    "attend_transpose": (
        "attention.cu",
        "out + source * out_stride + f,",
        "out + source * out_stride + f - 1,",
        (ATTENTION.test_attend, 3, 5, 1, F4, 0),
    ),
    "attend_alpha_gradient": (
        "attention.cu",
        "k < channels;",
        "k < channels - 1;",
        (ATTENTION.test_attend, 3, 5, 1, F4, 0),
    ),
    "gated_sum": (
        "gates.cu",
        "load<N>(row + width - past)",
        "load<N>(row + width - past - 1)",
        (ATTENTION.test_gated_sum, "mixed", 5, F4, 0),
    ),
    "gated_sum_key_gradient": (
        "gates.cu",
        "grad + range.dst * grad_stride + f, left",
        "grad + range.dst * (grad_stride - 1) + f, left",
        (ATTENTION.test_gated_sum, "mixed", 5, F4, 0),
    ),
    "gated_sum_transpose": (
        "gates.cu",
        "to + width, change",
        "to + width - 1, change",
        (ATTENTION.test_gated_sum, "mixed", 5, F4, 0),
    ),
    "dropout": ("dropout.cu", "f + 1 < width", "f + 2 < width", (DROPOUT.test_dropout, 4, 0.3, F4, 0)),
}
HUBS = {
    "the last slice": ("2 * ((num_edges + HUB - 1) / HUB)", "2 * (num_edges / HUB)"),
    "the length of a slice": ("item / 2 * HUB", "item / 2 * (HUB - 1)"),
    "where a hub starts": ("begin < first) begin = first", "begin < first) begin = first + 1"),
    "a hub that is seen twice": ("begin <= first)) continue", "begin < first)) continue"),
}


def launcher_of_copy(folder, file, old, new):
    skip_without_compiler()
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / file).write_text(edited(folder, Edit(file, old, new)))
    for source in folder.glob("*.cu"):  # scalar instances of float alone: a quarter of the time to compile
        source.write_text(re.sub(r"(?m)^[A-Z_]+\(.*(double|4).*\n", "", source.read_text()))
    return host_build.HostLauncher(folder=folder)


def test_every_kernel_has_an_edit():
    kernels = {kernel for kernels in KERNELS_OF.values() for kernel in kernels}
    assert set(EDITS) == kernels - {"add_rows_atomic", "add_rows_system"}  # forms of add_rows


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("kernel", EDITS)
def test_an_off_by_one_in_a_kernel_is_noticed(kernel, tmp_path):
    file, old, new, (case, *sizes) = EDITS[kernel]
    launcher = launcher_of_copy(tmp_path / "kernels", file, old, new)
    with pytest.raises((AssertionError, KernelError)):
        case(Machine(launcher, None, "cpu"), *sizes)


@pytest.mark.parametrize("what", HUBS)
def test_an_error_in_cutting_hubs_is_noticed(what, tmp_path):
    launcher = launcher_of_copy(tmp_path / "kernels", "shared.cuh", *HUBS[what])
    with pytest.raises((AssertionError, KernelError)):
        CSC.test_segments(Machine(launcher, None, "cpu"), "hubs", 3, np.float32, 0)
