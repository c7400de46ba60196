"""``hongtu doctor``: what this machine can do, in plain words."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

from hongtu import __version__
from hongtu.cli.plan_text import size
from hongtu.errors import InputError

# distribution -> (what it is for, how to get it)
OPTIONAL = {
    "torch_geometric": ("wrapping its convolutions as hongtu.nn.PyGLayer", "pip install torch_geometric"),
    "torch_sparse": ("comparing against its kernels", "pip install --no-build-isolation torch-sparse"),
    "kaminpar": ("partitioning large graphs faster than METIS", "pip install kaminpar"),
    "nvidia-cuda-nvrtc": ("compiling the CUDA kernels", "pip install 'hongtu[cuda]', or torch's CUDA build"),
    "cuda-core": ("training on GPUs", "pip install cuda-core 'cuda-bindings<14'"),
}


def add_parser(subparsers: Any) -> None:
    """Register ``hongtu doctor``."""
    parser = subparsers.add_parser("doctor", help="say what this machine can do")
    parser.add_argument(
        "--measure", nargs="?", const="hardware.json", metavar="FILE",
        help="measure this machine and write a profile for `hongtu plan --hardware` (default: hardware.json)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Look, measure where asked, and print."""
    target = None if options.measure is None else Path(options.measure).resolve()
    if target is not None and (target.is_dir() or not target.parent.is_dir()):
        raise InputError(f"--measure {options.measure}: expected a file in a directory that exists")
    found = examine()
    if options.measure is not None:
        from hongtu.measure import measure_cpu

        profile = measure_cpu(f"cpu, {found['cores']} cores").to_dict()
        Path(options.measure).write_text(json.dumps(profile, indent=1) + "\n")
        found |= {"profile": options.measure, "hardware": profile}
    print(json.dumps(found) if options.json else report(found))


def examine() -> dict[str, Any]:
    """Versions, cores, bytes of memory, GPUs and optional packages (None = absent)."""
    import torch

    gpus = []
    if torch.cuda.is_available():
        for k in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(k)
            gpus.append({"name": properties.name, "memory": properties.total_memory})
    return {
        "hongtu": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "memory_available": _available_memory(),
        "gpus": gpus,
        "packages": {name: _version(name) for name in OPTIONAL},
    }


def report(found: dict[str, Any]) -> str:
    """The same for people."""
    lines = [
        f"hongtu {found['hongtu']}, Python {found['python']}, torch {found['torch']}",
        f"  cpu     {found['cores']} cores, {size(found['memory'])} of memory, {size(found['memory_available'])} free: "
        "training runs here",
        f"  gpu     {_gpus(found)}",
    ]
    for name, (purpose, remedy) in OPTIONAL.items():
        version = found["packages"][name]
        state = f"{version}" if version else f"not installed: `{remedy}`"
        lines.append(f"  {name:<18}{state}  ({purpose})")
    if "hardware" in found:
        lines += _measured(found["hardware"], found["profile"])
    return "\n".join(lines)


def _gpus(found: dict[str, Any]) -> str:
    if found["gpus"]:
        names = ", ".join(f"{gpu['name']} ({size(gpu['memory'])})" for gpu in found["gpus"])
        return f"{names}: training runs there with `--device cuda`"
    if found["torch_cuda"] is None:
        return "none: this torch is built without CUDA, which training on the CPU does not need"
    return "none that torch can use"


def _measured(hardware: dict[str, Any], file: str) -> list[str]:
    giga = 1e9
    return [
        f"  measured, written to {file}; use it as `hongtu plan --hardware {file}`:",
        f"    contiguous copies    {hardware['contiguous_link'] / giga:8.1f} GB/s",
        f"    rows of 512 bytes    {hardware['host_link'] / giga:8.1f} GB/s",
        f"    sums over edges read {hardware['memory_bandwidth'] / giga:8.1f} GB/s",
        f"    dense products       {hardware['flops'] / giga:8.1f} GFLOP/s",
        f"    a chunk's fixed cost {hardware['stage_seconds'] * 1e3:8.2f} ms",
    ]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _available_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
