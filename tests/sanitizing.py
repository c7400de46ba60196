"""Kernels on several threads of the processor at once, under ThreadSanitizer."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hongtu.cuda_ext.compile import FOLDER, file_of
from hongtu.cuda_ext.host_build import LANGUAGE, HostLauncher, compiler

PROGRAM = Path(__file__).resolve().parent / "cuda_ext" / "sanitized.cuh"
FLAGS = ("-fsanitize=thread", "-O1", "-g", *LANGUAGE, "-rdynamic")


def works(folder: Path) -> str:
    """ "", or why programs cannot be run under ThreadSanitizer here."""
    command, _ = compiler()
    source, program = folder / "empty.cc", folder / "empty"
    source.write_text("int main() {}")
    try:
        subprocess.run(
            [*command, "-fsanitize=thread", str(source), "-o", str(program)], check=True, capture_output=True
        )
        subprocess.run([str(program)], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        return f"no ThreadSanitizer: {error.stderr.decode(errors='replace').strip()[-200:]}"
    return ""


class SanitizingLauncher(HostLauncher):
    """Launches kernels in programs of their own, which end where threads race.

    Args:
        programs: a folder for them.
        folder: where the kernel files are.
    """

    def __init__(self, programs: Path, folder: Path = FOLDER) -> None:
        super().__init__(folder=folder)
        self._programs = programs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        block: tuple[int, int],
        args: Sequence[int],
        stream: None,
        tensors: tuple[Tensor | None, ...],
    ) -> None:
        file = file_of(name)
        if file not in self._running:
            self._running[file] = self._start(file)
        program = self._running[file]
        given = [x for x in tensors if x is not None and x.nbytes]
        heads = [number for x in given for number in (x.data_ptr(), x.nbytes)]
        parts = [struct.pack(f"3q{len(name)}s", len(name), len(args), len(given), name.encode())]
        parts.append(struct.pack(f"=6I{len(args) + len(heads)}q", *grid, 1, *block, 1, *args, *heads))
        program.stdin.write(b"".join([*parts, *(ctypes.string_at(x.data_ptr(), x.nbytes) for x in given)]))
        program.stdin.flush()
        answer = program.stdout.read(4 + sum(x.nbytes for x in given))
        assert len(answer) > 4, f"{name}: {program.stderr.read().decode()}"
        assert answer[:4] == bytes(4), f"{name}: refused"
        at = 4
        for x in given:
            x.flatten().view(torch.uint8).copy_(
                torch.frombuffer(bytearray(answer[at : at + x.nbytes]), dtype=torch.uint8)
            )
            at += x.nbytes

    def _start(self, file: str) -> Any:
        command, _ = compiler()
        program = self._programs / f"{Path(file).stem}"
        source = str(self.folder / file)
        flags = [*FLAGS, f"-I{FOLDER}", "-include", str(PROGRAM), "-x", "c++", source, "-o", str(program), "-ldl"]
        subprocess.run([*command, *flags], check=True)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([str(program)], env={"TSAN_OPTIONS": "halt_on_error=1"}, **pipes)

    def close(self) -> None:
        for program in self._running.values():
            program.communicate()
