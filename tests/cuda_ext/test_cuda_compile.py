"""The CUDA kernels through NVRTC, which needs no GPU, and the cache of what it makes."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from hongtu.cuda_ext import compile, host_build
from hongtu.cuda_ext.compile import FOLDER, KERNELS_OF, KernelError, compile_with_log, cubin, file_of, nvrtc_version
from tests.kernel_machine import skip_without_compiler

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]


@pytest.fixture(scope="module")
def nvrtc():
    try:
        return nvrtc_version()
    except KernelError as error:
        pytest.skip(str(error))


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hongtu" / "kernels"


@pytest.fixture
def folder(tmp_path):
    """Kernel files of one small kernel and one that does not compile."""
    made = tmp_path / "kernels"
    made.mkdir()
    (made / "shared.cuh").write_text((FOLDER / "shared.cuh").read_text())
    kernel = '#include "shared.cuh"\nKERNEL(zero_rows_f32x1, (float* to), to[0] = 0)\n'
    (made / "rows.cu").write_text(kernel)
    (made / "csc.cu").write_text(kernel.replace("to[0]", "nothing[0]"))
    return made


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("file", KERNELS_OF)
def test_every_kernel_file_compiles(nvrtc, file, arch):
    code = cubin(file, arch)
    assert code[:4] == b"\x7fELF"
    for kernel in KERNELS_OF[file]:
        assert kernel.encode() in code


@pytest.mark.parametrize("file", ["rows.cu", "csc.cu", "attention.cu", "gates.cu"])
def test_wide_instances_move_16_bytes_at_once(nvrtc, file):
    """The compiler may take a lane apart: that costs speed, which no other test would show."""
    wide = 0
    for name, code in re.findall(r"\.entry (\w+)\((.*?)(?=\.entry|\Z)", ptx_of(FOLDER / file), re.DOTALL):
        if name.endswith(("x4", "x2")):
            wide += 1
            loads, stores = (re.findall(rf"\b{op}\.global[.\w]*\.v(\d)\.", code) for op in ("ld", "st"))
            elements = name[-1]
            assert elements in loads or name.startswith("zero_rows"), name
            if not name.startswith("attend_alpha_gradient"):  # writes one element per lane
                assert elements in stores, name
    assert wide >= 4


@pytest.mark.long
@pytest.mark.parametrize("file", KERNELS_OF)
def test_no_kernel_spills_and_all_leave_room_for_four_blocks(nvrtc, file):
    """On a multiprocessor of 65536 registers, with 256 threads a block. Of float64, which is for checks, NVRTC 13.0
    keeps 16 bytes of a kernel in memory."""
    _, log = compile_with_log(FOLDER / file, "sm_90", "--ptxas-options=-v")
    compiled = re.findall(
        r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) registers",
        log,
        re.DOTALL,
    )
    assert {file_of(name) for name, *_ in compiled} == {file}
    for name, stack, spilled, registers in compiled:
        most = 16 if "_f64" in name else 0
        assert max(int(stack), int(spilled)) <= most and int(registers) <= 64, (name, stack, spilled, registers)


ROWS_IN_FLIGHT = {  # 16-byte loads of a loop over edges or rows, in a lane that moves 4 floats
    "rows.cu": {"copy_rows": 4, "add_rows": 8},
    "csc.cu": {"csc_aggregate": 8, "segment_sum": 4},  # four with weights, or four without
    "attention.cu": {"attend": 4, "attend_alpha_gradient": 4},
    "gates.cu": {"gated_sum": 6, "gated_sum_key_gradient": 6},  # of two edges, a third where a value is not aligned
}


@pytest.mark.parametrize("file", KERNELS_OF)
def test_machine_code_spills_nothing_and_loops_load_16_bytes_at_once(nvrtc, file, tmp_path):
    """As a Hopper executes it: an instruction that moves 16 bytes, several of them before the first sum."""
    code = machine_code(file, tmp_path)
    assert {file_of(name) for name in code} == {file}
    for name, lines in code.items():
        assert "_f64" in name or not [line for line in lines if re.search(r"\b(LDL|STL)\b", line)], name
    for kernel, rows in ROWS_IN_FLIGHT.get(file, {}).items():
        loads = [sum("LDG.E.128" in line for line in loop) for loop in inner_loops(code[f"{kernel}_f32x4"])]
        assert rows in loads, (kernel, loads)
        assert not [line for line in code[f"{kernel}_f32x1"] if ".128" in line]


def test_loops_are_told_from_what_is_around_them():
    lines = ["MOV ;", ".L_x_1:", "A ;", ".L_x_2:", "B ;", "@P0 BRA `(.L_x_2) ;", "@P1 BRA `(.L_x_3) ;",
             "BRA `(.L_x_1) ;", ".L_x_3:", "EXIT ;"]  # fmt: skip
    assert inner_loops(lines) == [["B ;", "@P0 BRA `(.L_x_2) ;"]]


def machine_code(file, folder):
    """The lines of every kernel of a file for sm_90."""
    found = shutil.which("nvdisasm") or next(
        iter(sorted(map(str, Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/nvdisasm")))), None
    )
    if found is None:
        pytest.skip("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    (folder / "code.cubin").write_bytes(cubin(file, "sm_90"))
    run = subprocess.run([found, "-c", str(folder / "code.cubin")], capture_output=True, text=True, check=True)
    parts = re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", run.stdout, re.DOTALL | re.MULTILINE)
    return {name: [line.strip() for line in lines.split("\n")] for name, lines in parts}


def inner_loops(lines):
    """The lines of every loop that has none inside: from a label to a jump back to it."""
    labels = {line[:-1]: k for k, line in enumerate(lines) if line.startswith(".L_") and line.endswith(":")}
    jumps = [(k, re.search(r"BRA.*`\((\.L_\w+)\)", line)) for k, line in enumerate(lines)]
    loops = [(labels[to[1]], k) for k, to in jumps if to and labels.get(to[1], k) < k]
    inner = [(a, b) for a, b in loops if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)]
    return [lines[a + 1 : b + 1] for a, b in inner]


def ptx_of(source):
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    options = [b"--gpu-architecture=compute_90", b"--std=c++17", f"-I{source.parent}".encode()]
    assert nvrtc.nvrtcCompileProgram(program, len(options), options) == (nvrtc.nvrtcResult.NVRTC_SUCCESS,)
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    return text.decode()


def test_every_kernel_file_is_known():
    assert {path.name for path in FOLDER.glob("*.cu")} == set(KERNELS_OF)
    assert file_of("add_rows_atomic_f32x1") == "rows.cu"
    with pytest.raises(KernelError, match="'sort_rows_f32x1'"):
        file_of("sort_rows_f32x1")


def test_a_second_compilation_reads_the_disk(nvrtc, empty_cache, folder, monkeypatch):
    first = cubin("rows.cu", "sm_90", folder)
    [entry] = empty_cache.iterdir()
    monkeypatch.setattr("hongtu.cuda_ext.compile._compile", lambda *_: pytest.fail("compiled again"))
    assert cubin("rows.cu", "sm_90", folder) == first == compile.content(entry)


@pytest.mark.parametrize("damage", [lambda old: old[:-40], lambda old: old[:100] + b"x" + old[101:], lambda old: b""])
def test_a_damaged_entry_is_made_again(nvrtc, empty_cache, folder, damage):
    first = cubin("rows.cu", "sm_90", folder)
    [entry] = empty_cache.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    assert cubin("rows.cu", "sm_90", folder) == first
    assert [entry.read_bytes()] == [path.read_bytes() for path in empty_cache.iterdir()] == [whole]


def test_another_source_header_or_architecture_is_another_entry(nvrtc, empty_cache, folder):
    cubin("rows.cu", "sm_90", folder)
    cubin("rows.cu", "sm_80", folder)
    for file in ("rows.cu", "shared.cuh"):
        with (folder / file).open("a") as source:
            source.write("\n// changed\n")
        cubin("rows.cu", "sm_90", folder)
    assert len(list(empty_cache.iterdir())) == 4


def test_an_error_names_the_file_and_holds_the_log(nvrtc, empty_cache, folder):
    with pytest.raises(
        KernelError, match=r'(?s)csc.cu does not compile for sm_90.*csc.cu\(2\).*"nothing" is undefined'
    ):
        cubin("csc.cu", "sm_90", folder)
    assert not empty_cache.exists()


def test_a_cache_that_cannot_be_written_costs_a_warning(empty_cache, folder, nvrtc):
    empty_cache.parent.parent.write_text("a file in the way")
    with pytest.warns(UserWarning, match="XDG_CACHE_HOME"):
        assert cubin("rows.cu", "sm_90", folder)[:4] == b"\x7fELF"


def test_the_cpu_build_is_cached_mended_and_reports_its_log(empty_cache, folder, monkeypatch):
    skip_without_compiler()
    entry = host_build.library(folder / "rows.cu")
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-50])
    assert host_build.library(folder / "rows.cu") == entry and entry.read_bytes()[:4] == b"\x7fELF"
    with pytest.raises(KernelError, match=r"(?s)csc.cu does not compile with .*nothing.* was not declared"):
        host_build.library(folder / "csc.cu")
    monkeypatch.setattr(host_build, "_compile", lambda *_: pytest.fail("compiled again"))
    host_build.library(folder / "rows.cu")


def test_no_compiler_is_said_clearly(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    host_build.compiler.cache_clear()
    try:
        with pytest.raises(KernelError, match=r"no-such-compiler.*install g\+\+ or set CXX"):
            host_build.HostLauncher()
    finally:
        host_build.compiler.cache_clear()
