"""``hongtu doctor``: say what this machine can do."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from hongtu import __version__
from hongtu.compiled import kept_in
from hongtu.config import size
from hongtu.errors import InputError, note
from hongtu.ranks.parent import torchruns

PROFILE = "hardware.json"  # where nothing is said


class Ability(NamedTuple):
    """Something optional.

    Attributes:
        does: what it is for, after "can" or "cannot".
        packages: distributions that it takes.
        remedy: how to get them.
    """

    does: str
    packages: tuple[str, ...]
    remedy: str


ABILITIES = (
    Ability("partition large graphs with KaMinPar, faster than METIS", ("kaminpar",), "pip install 'hongtu[kaminpar]'"),
    Ability("read Parquet and Arrow tables", ("pyarrow",), "pip install 'hongtu[arrow]'"),
    Ability("convert and wrap torch_geometric's models", ("torch_geometric",), "pip install 'hongtu[pyg]'"),
    Ability("train with torch-sparse's products", ("torch_scatter", "torch_sparse"),
            "pip install --no-build-isolation 'hongtu[torch-sparse]'"),
    Ability("score with OGB's evaluators", ("ogb",), "pip install 'hongtu[ogb]'"),
    Ability("write and read safetensors", ("safetensors",), "pip install 'hongtu[safetensors]'"),
    Ability("log to TensorBoard", ("tensorboard",), "pip install 'hongtu[tensorboard]'"),
    Ability("log to Weights & Biases", ("wandb",), "pip install wandb"),
    Ability("log to MLflow", ("mlflow",), "pip install mlflow"),
    Ability("draw pictures for `hongtu report` and --plot", ("matplotlib",), "pip install 'hongtu[report]'"),
)  # fmt: skip
CUDA_PACKAGES = ("cuda-bindings",)
CUDA_REMEDY = "pip install 'hongtu[cuda]'"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    parser.add_argument(
        "--measure", nargs="?", const=PROFILE, metavar="FILE",
        help=f"measure this machine and write a profile for `hongtu plan --hardware` (default: {PROFILE})",
    )  # fmt: skip
    parser.add_argument("--spill", metavar="DIR", help="whose disk --measure measures (default: that of FILE)")
    parser.add_argument(
        "--measure-links", nargs="?", const="topology.json", metavar="FILE",
        help="measure what joins ranks that torchrun started and write a file for --topology (default: topology.json)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    """Look, measure where asked, and print."""
    if options.measure_links is not None:
        return _measure_links(options)
    target = None if options.measure is None else Path(os.path.realpath(options.measure))
    if target is not None and (target.is_dir() or not target.parent.is_dir()):
        raise InputError(f"--measure {options.measure}: expected a file in a directory that exists")
    if target is None and options.spill is not None:
        raise InputError(f"--spill {options.spill}: is for --measure; give both")
    found = examine()
    if target is not None:
        from hongtu.bench.profile import measure_cpu
        from hongtu.bench.records import OthersShare
        from hongtu.files import write_text

        start, others = perf_counter(), OthersShare()
        profile = measure_cpu(f"cpu, {found['cores']} cores", Path(options.spill or target.parent)).to_dict()
        share = others.stop(perf_counter() - start)
        write_text(Path(options.measure), json.dumps(profile, indent=1) + "\n", PROFILE)
        found |= {"profile": options.measure, "hardware": profile, "others_share": share}
    print(json.dumps(found) if options.json else report(found))


def _measure_links(options: argparse.Namespace) -> None:
    """On every host the first rank writes what was found; the first of all prints it."""
    if options.measure is not None or options.spill is not None:
        raise InputError("--measure-links: is measured by several processes, --measure by one; give one of them")
    if torchruns("WORLD_SIZE", "1") == 1:
        raise InputError(
            "--measure-links: measures what joins ranks, and this process is alone; start it as training, by "
            "torchrun --nproc-per-node K ... -m hongtu doctor --measure-links (docs/machines.md)"
        )
    from hongtu.files import whole_file
    from hongtu.ranks.fabric import measure_topology
    from hongtu.ranks.launch import joined

    path = Path(options.measure_links)
    with joined(say=note) as ranks:
        found = measure_topology(ranks)
        with ranks.agreed():
            if os.environ.get("LOCAL_RANK", "0") == "0":
                with whole_file(path) as partial:
                    partial.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    if ranks.rank == 0:
        print(json.dumps(found) if options.json else _links(found["hops"], path))


def _links(hops: Mapping[str, int], path: Path) -> str:
    width = max(map(len, hops))
    lines = [f"Measured, written to {path} on every host; use it as `hongtu train --topology {path}`:"]
    return "\n".join([*lines, *(f"  {hop:<{width}} {rate / 1e6:10.1f} MB/s" for hop, rate in hops.items())])


def examine() -> dict[str, Any]:
    """Versions, cores, bytes of memory, GPUs, where compiled code is kept and optional packages (None = absent)."""
    import torch

    from hongtu.bench.records import version_of

    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count() if torch.cuda.is_available() else 0))
    page = os.sysconf("SC_PAGE_SIZE")
    packages = [name for ability in ABILITIES for name in ability.packages]
    return {
        "hongtu": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * page,
        "memory_available": os.sysconf("SC_AVPHYS_PAGES") * page,
        "gpus": [{"name": gpu.name, "memory": gpu.total_memory} for gpu in gpus],
        "compiled_code": kept_in(),
        "packages": {name: version_of(name) for name in (*packages, *CUDA_PACKAGES)},
    }


def report(found: dict[str, Any]) -> str:
    """The same for people: a line for everything it can do, then a line, with its remedy, for what it cannot."""
    packages = found["packages"]
    able = [f"train on the CPU: {found['cores']} cores, {size(found['memory_available'])} of memory free"]
    lacking = []
    gpu, remedy = _gpus(found)
    if remedy is None:
        able.append(gpu)
    else:
        lacking.append((gpu, remedy))
    for ability in ABILITIES:
        if all(packages[name] for name in ability.packages):
            versions = ", ".join(f"{name} {packages[name]}" for name in ability.packages)
            able.append(f"{ability.does} ({versions})")
        else:
            lacking.append((ability.does, ability.remedy))
    lines = [
        f"hongtu {found['hongtu']}, Python {found['python']}, torch {found['torch']}; "
        f"{size(found['memory'])} of memory in all",
        "This machine can:",
        *(f"  {line}" for line in able),
    ]
    if lacking:
        lines += ["It cannot, which training on the CPU does not need:"]
        lines += [line for does, remedy in lacking for line in (f"  {does}", f"      {remedy}")]
    if found["compiled_code"] is None:
        lines += [
            "It cannot keep compiled code: every run on a large graph compiles its kernels anew, half a second each:",
            "      set NUMBA_CACHE_DIR to a directory that can be written and stays",
        ]
    if "hardware" in found:
        lines += _measured(found["hardware"], found["profile"])
        from hongtu.bench.records import BUSY

        if found["others_share"] > BUSY:
            lines.append(
                f"  Other processes took {found['others_share']:.0%} of the processors meanwhile, so predictions may "
                "be far off: measure again when the machine is idle."
            )
    else:
        lines.append("How fast it is: `hongtu doctor --measure`.")
    return "\n".join(lines)


def _gpus(found: dict[str, Any]) -> tuple[str, str | None]:
    """What it can do, or what it cannot and the remedy."""
    missing = [name for name in CUDA_PACKAGES if found["packages"][name] is None]
    if found["gpus"]:
        names = ", ".join(f"{gpu['name']} ({size(gpu['memory'])})" for gpu in found["gpus"])
        if missing:
            return f"train on {names}: {' and '.join(missing)} not installed", CUDA_REMEDY
        return f"train on {names}: `--device cuda`", None
    if found["torch_cuda"] is None:
        return "train on GPUs: this torch is built without CUDA", "install torch's CUDA build (https://pytorch.org)"
    return "train on GPUs: torch sees none", "look whether `nvidia-smi` lists one, and CUDA_VISIBLE_DEVICES"


def _measured(hardware: dict[str, Any], file: str) -> list[str]:
    giga = 1e9
    return [
        f"Measured, written to {file}; use it as `hongtu plan --hardware {file}`:",
        f"  memory               {hardware['memory_bandwidth'] / giga:8.1f} GB/s",
        f"  rows of 512 bytes    {hardware['host_link'] / giga:8.1f} GB/s",
        f"  dense products       {hardware['flops'] / giga:8.1f} GFLOP/s",
        f"  starting a chunk     {hardware['chunk_seconds'] * 1e3:8.2f} ms",
        f"  and an operation     {hardware['call_seconds'] * 1e6:8.2f} us",
        f"  files                {hardware['disk_link'] / giga:8.1f} GB/s",
    ]
