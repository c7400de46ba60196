"""What a machine's links, memory and arithmetic can do: hardware profiles.

A profile is a name of ``PROFILES`` or a JSON file with the same fields, which ``hongtu doctor --measure`` writes.
"""

from __future__ import annotations

import os
from dataclasses import MISSING, asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from hongtu.errors import InputError

OPTIONAL_BYTES = ("device_memory", "cache", "largest_reused")
# what earlier profiles call a rate, among more of them
EARLIER = {"memory_bandwidth": "sweep_bandwidth", "chunk_seconds": "stage_seconds", "disk_link": "recall_link"}
MARGIN = 16  # one part in so many of a device's memory is left to the driver and to libraries
ALIGNMENT = 256  # bytes, at a multiple of which every planned buffer begins in a device's own memory
LANE, LEAST_PADDED = 16, 64  # bytes: what a lane moves, and the shortest row that is padded


def aligned(nbytes: int) -> int:
    """So many bytes, up to where the next buffer may begin.

    >>> aligned(0), aligned(1), aligned(256)
    (0, 256, 256)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def padded(columns: int, itemsize: int) -> int:
    """Numbers from one vertex row to the next in a device's own memory: rows of 64 bytes or more begin at multiples of
    16, which one lane of a GPU moves at once; it costs a fifth of a row at most.

    >>> padded(47, 4), padded(602, 4), padded(128, 4), padded(7, 4), padded(47, 8)
    (48, 604, 128, 7, 48)
    """
    row = columns * itemsize
    return columns if row < LEAST_PADDED else -(-row // LANE) * LANE // itemsize


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Eight rates of one machine, each measured alone, and sizes of its memory.

    Attributes:
        name: for people.
        devices: how many devices work at the same time.
        host_link: bytes per second between the host and one device, in either direction; T_hd of the paper's Equation
            4. Gradient rows are added on the host as fast as the link of one device brings them.
        peer_link: bytes per second between two devices; T_dd.
        network_link: bytes per second between ranks, in one direction; nominal where a profile does not say it.
        disk_link: bytes per second to and from files of rows that host memory does not hold; nominal where a profile
            does not say it.
        memory_bandwidth: bytes per second that arithmetic reads and writes in a device's own memory.
        flops: float32 operations per second of a dense product of rows on one device.
        chunk_seconds: of starting one chunk of one pass, and again for each tensor whose rows it exchanges.
        call_seconds: of starting an operation of a row-wise stage.
        device_memory: bytes of one device, or None where nothing but the host limits it.
        cache: bytes of rows that stay in the last cache before the memory, or None where every row comes from memory.
        largest_reused: bytes of a tensor that the allocator hands out again as it is, or None for any size.
        staged: whether devices have memory of their own, so that rows reach them through staging memory and copies
            run beside arithmetic.
    """

    name: str
    devices: int = 1
    host_link: float
    peer_link: float
    network_link: float = 1.25e9  # ten gigabits per second
    disk_link: float = 1.5e9  # an NVMe drive, where files are also written
    memory_bandwidth: float
    flops: float
    chunk_seconds: float
    call_seconds: float
    device_memory: int | None = None
    cache: int | None = None
    largest_reused: int | None = None
    staged: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                valid = isinstance(value, str) and bool(value)
            elif field.name in OPTIONAL_BYTES and value is None:
                continue
            elif field.name == "staged":
                valid = isinstance(value, bool)
            else:
                valid = isinstance(value, int | float) and not isinstance(value, bool) and 1e-60 < value < 1e60
                valid &= isinstance(value, int) or field.name not in ("devices", *OPTIONAL_BYTES)
            if not valid:
                kind = "a name" if field.name == "name" else "a positive number (devices and bytes: an integer)"
                raise InputError(f"hardware profile: {field.name} is {value!r}, expected {kind}")

    @property
    def usable_memory(self) -> int | None:
        """Bytes of one device less a margin, or None."""
        return None if self.device_memory is None else self.device_memory - self.device_memory // MARGIN

    def memory_for(self, partitions: int) -> int | None:
        """Bytes for each of so many partitions, or None; where there are fewer devices, some share one."""
        usable = self.usable_memory
        return None if usable is None else usable // -(-partitions // self.devices)

    @property
    def peer_cost(self) -> float:
        """Seconds that a row of a peer takes, in those of a row of the host."""
        return self.host_link / self.peer_link

    def equation4(self, v_ori: int, v_p2p: int, v_ru: int, row_bytes: int, partitions: int) -> float:
        """Seconds of one pass by the paper's Equation 4, for devices that have even parts of it at the same time.

        Args:
            v_ori, v_p2p, v_ru: rows that every chunk needs, that a batch brings once, and that are new in a batch.
            row_bytes: bytes of a row.
            partitions: of the graph; where there are more devices, the others are idle.
        """
        total = v_ru / self.host_link + (v_ori - v_p2p) / self.peer_link
        total += 2 * (v_p2p - v_ru) / self.memory_bandwidth  # T_ru: read and written
        return row_bytes * total / min(self.devices, partitions)

    def to_dict(self) -> dict[str, Any]:
        """The fields of a profile file."""
        return asdict(self)


# Two cores of a cloud server (AMD EPYC 9004), within what they can reach: close to the seconds of twelve models that
# were timed there (experiments/results/bench/estimator.jsonl).
CPU = Hardware(
    name="cpu",
    host_link=1.4e10,
    peer_link=1.4e10,
    memory_bandwidth=3.0e10,
    flops=2.35e11,
    chunk_seconds=1.7e-4,
    call_seconds=8.0e-6,
    cache=23 << 20,
    largest_reused=32 << 20,  # of glibc: larger blocks are mapped, and their pages cleared, each time
)

# Python starts the work of GPUs, too, and takes as long for it; nobody has measured it.
_gpu = partial(Hardware, chunk_seconds=CPU.chunk_seconds, call_seconds=CPU.call_seconds, staged=True)

# The paper's server. NVLink 3.0 between each pair and memory as data sheets have them. Fitted on half of the paper's
# epoch times, within what PCIe 4.0 x16 and TF32 can reach (`python -m experiments.published`; docs/benchmarks.md has
# the errors on the other half): the host's links, products.
A100X4 = _gpu(
    name="a100x4",
    devices=4,
    host_link=24.1e9,
    peer_link=200e9,
    memory_bandwidth=1.9e12,
    flops=30.6e12,
    device_memory=80 * 2**30,
)

# One H200. Nominal: PCIe 5.0 x16, HBM3e, arithmetic without tensor cores, 141 GB.
H200 = _gpu(
    name="h200", host_link=45e9, peer_link=450e9, memory_bandwidth=4.8e12, flops=67e12, device_memory=141 * 10**9
)

# One RTX A5000. Not measured: PCIe 4.0 x16 at what a copy reaches, GDDR6 and float32 arithmetic as NVIDIA's data sheet
# has them (768 GB/s, 27.8 TFLOPS, 24 GB), NVLink in one direction.
A5000 = _gpu(
    name="a5000", host_link=22e9, peer_link=56e9, memory_bandwidth=768e9, flops=27.8e12, device_memory=24 * 2**30
)

PROFILES = {hardware.name: hardware for hardware in (CPU, A100X4, A5000, H200)}


def load_hardware(name_or_path: Hardware | str | os.PathLike[str]) -> Hardware:
    """A shipped profile by name, or one from a JSON file; a profile is given back.

    Raises:
        InputError: for an unknown name, or a file that is no profile.

    >>> load_hardware("h200").devices
    1
    """
    if isinstance(name_or_path, Hardware):
        return name_or_path
    if str(name_or_path) in PROFILES:
        return PROFILES[str(name_or_path)]
    path = Path(str(name_or_path))
    if not path.is_file():
        raise InputError(
            f"hardware {str(name_or_path)!r}: not found; expected {', '.join(PROFILES)}, or a file that "
            "`hongtu doctor --measure FILE` wrote"
        )
    from hongtu.files import read_json  # numpy with it, which a profile's name does without

    entries = read_json(path, f"write it with `hongtu doctor --measure {path}`")
    known = {field.name for field in fields(Hardware)}
    needed = {field.name for field in fields(Hardware) if field.default is MISSING}
    if isinstance(entries, dict) and "sweep_bandwidth" in entries:
        entries |= {new: entries[old] for new, old in EARLIER.items() if old in entries}
        entries = {name: value for name, value in entries.items() if name in known}
    if not isinstance(entries, dict) or not needed <= entries.keys() <= known:
        found = set(entries) if isinstance(entries, dict) else set()
        raise InputError(
            f"{path}: not a hardware profile; missing {sorted(needed - found)}, unknown {sorted(found - known)}: write "
            f"one with `hongtu doctor --measure {path}`"
        )
    try:
        return Hardware(**entries)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
