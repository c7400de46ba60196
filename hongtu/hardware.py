"""What a machine's links, memory and arithmetic can do: hardware profiles.

A profile is a name of ``PROFILES`` or a JSON file with the same fields, which ``hongtu doctor --measure`` writes.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hongtu.errors import InputError

OPTIONAL_BYTES = ("device_memory", "cache", "largest_reused")
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
    """Rates of one machine, bytes per second where not said otherwise.

    Attributes:
        name: for people.
        devices: how many devices work at the same time.
        host_link: sparse rows between host and one device; T_hd of the paper's Equation 4.
        peer_link: rows between two devices; T_dd.
        reuse_link: rows from one place of a device's memory to another; T_ru.
        contiguous_link: contiguous rows between host and one device; structure_link: chunks' structure and plan arrays.
        network_link: rows between ranks, in one direction; nominal where a profile does not say it.
        recall_link: rows that host memory does not hold, from files; spill_link: and to them; nominal where a profile
            does not say them.
        row_seconds: what a sparse row takes between host and device beside its bytes.
        host_add: gradient rows added to host rows, beyond the time of their way to the host; all devices together.
        memory_bandwidth: rows that a sum over in-edges reads from a device's own memory.
        fetch_bandwidth: what of them was not in the cache, beside that.
        transpose_bandwidth: rows that its transpose reads and writes there.
        edge_seconds, transpose_edge_seconds: seconds that every edge of either takes beside its row.
        function_bandwidth, function_edge_seconds: the same of functions of edges (attention, gates) and of their
            gradients, for every row that they find by an edge; function_fetch_bandwidth: what was not in the cache.
        exponential_seconds: what an exponential in these takes beside that.
        sweep_bandwidth: contiguous rows that row-wise stages read and write beside their products.
        near_bandwidth: the same where a chunk's rows are few beside ``cache``.
        fresh_bandwidth: the same where they take more than ``largest_reused``: their pages are cleared each time.
        flops, product_bandwidth: float32 operations per second of a dense product of rows on one device, and rows that
            it takes and gives, which takes as long again.
        weight_flops, weight_bandwidth: the same of a weight's gradient, a product over all rows.
        loss_row_seconds: what a term of the loss takes for a row of the output that has one, beside its bytes.
        stage_seconds: fixed cost of running one chunk of one pass.
        aggregate_stage_seconds, gradient_stage_seconds, loss_stage_seconds: what a chunk costs beyond that where it
            aggregates, has gradients, has the loss; transpose_stage_seconds: where the aggregate has gradients.
        exchange_stage_seconds: and for values, or gradients, whose rows come from or go to somewhere else;
            peer_stage_seconds: and where that may be another device.
        call_seconds: fixed cost of every operation of a row-wise stage.
        device_memory: bytes of one device, or None where nothing but the host limits it.
        cache: bytes of rows that stay in the last cache before the memory, or None where ``memory_bandwidth`` counts.
        largest_reused: bytes of a tensor that the allocator hands out again as it is, or None for any size.
        staged: whether devices have memory of their own, so that rows reach them through staging memory and copies
            run beside arithmetic.
    """

    name: str
    devices: int = 1
    host_link: float
    peer_link: float
    reuse_link: float
    contiguous_link: float
    structure_link: float
    row_seconds: float
    host_add: float
    memory_bandwidth: float
    fetch_bandwidth: float
    transpose_bandwidth: float
    edge_seconds: float
    transpose_edge_seconds: float
    function_bandwidth: float
    function_fetch_bandwidth: float
    function_edge_seconds: float
    exponential_seconds: float
    sweep_bandwidth: float
    near_bandwidth: float
    fresh_bandwidth: float
    flops: float
    product_bandwidth: float
    weight_flops: float
    weight_bandwidth: float
    loss_row_seconds: float
    stage_seconds: float
    aggregate_stage_seconds: float
    gradient_stage_seconds: float
    transpose_stage_seconds: float
    loss_stage_seconds: float
    exchange_stage_seconds: float
    peer_stage_seconds: float
    call_seconds: float
    network_link: float = 1.25e9  # ten gigabits per second
    recall_link: float = 1.5e9  # an NVMe drive, where files are also written
    spill_link: float = 1.5e9
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
        total = v_ru / self.host_link + (v_p2p - v_ru) / self.reuse_link + (v_ori - v_p2p) / self.peer_link
        return row_bytes * total / min(self.devices, partitions)

    def to_dict(self) -> dict[str, Any]:
        """The fields of a profile file."""
        return asdict(self)


# Measured by `hongtu doctor --measure` on two cores of a cloud server.
CPU = Hardware(
    name="cpu",
    host_link=1.4e10,
    peer_link=1.4e10,
    reuse_link=1.4e10,
    contiguous_link=1.5e10,
    structure_link=3.0e9,
    row_seconds=3.4e-9,
    host_add=1.3e12,
    memory_bandwidth=5.1e10,
    fetch_bandwidth=1.1e10,
    transpose_bandwidth=1.9e11,
    edge_seconds=1.0e-15,
    transpose_edge_seconds=1.3e-8,
    function_bandwidth=2.7e11,
    function_fetch_bandwidth=3.0e10,
    function_edge_seconds=8.0e-9,
    exponential_seconds=7.1e-10,
    sweep_bandwidth=1.7e10,
    near_bandwidth=2.4e10,
    fresh_bandwidth=9.0e9,
    flops=4.3e11,
    product_bandwidth=3.6e10,
    weight_flops=4.2e11,
    weight_bandwidth=1.8e10,
    loss_row_seconds=7.8e-8,
    stage_seconds=1.1e-4,
    aggregate_stage_seconds=1.3e-4,
    gradient_stage_seconds=1.4e-4,
    transpose_stage_seconds=5.7e-5,
    loss_stage_seconds=2.9e-4,
    exchange_stage_seconds=7.2e-5,
    peer_stage_seconds=9.7e-5,
    call_seconds=6.9e-6,
    cache=23 << 20,
    largest_reused=32 << 20,  # of glibc: larger blocks are mapped, and their pages cleared, each time
)


def _data_sheet(*, memory: float, arithmetic: float, **known: Any) -> Hardware:
    """A profile of a GPU that was not measured: every access at its memory's bandwidth, every product at its float32
    arithmetic's rate, next to nothing per row and edge, and what Python takes to start work, which is as on a CPU."""
    named = [field.name for field in fields(Hardware)]
    rates: dict[str, Any] = {name: memory for name in named if name.endswith("_bandwidth")}
    rates |= {name: 1e-15 for name in named if name.endswith("_seconds")}
    rates |= {name: getattr(CPU, name) for name in named if name.endswith("stage_seconds") or name == "call_seconds"}
    rates |= {"flops": arithmetic, "weight_flops": arithmetic}
    return Hardware(staged=True, **(rates | known))


# The paper's server. NVLink 3.0 between each pair and memory as data sheets have them. Fitted on half of the paper's
# epoch times, within what PCIe 4.0 x16 and TF32 can reach (`python -m experiments.published`; docs/benchmarks.md has
# the errors on the other half): the host's links, adding gradients, edges of attention, products.
A100X4 = _data_sheet(
    name="a100x4",
    devices=4,
    host_link=24.4e9,
    peer_link=200e9,
    reuse_link=1.5e12,
    contiguous_link=32e9,
    structure_link=32e9,
    host_add=20.1e9,
    function_edge_seconds=6.82e-10,
    memory=1.9e12,
    arithmetic=156e12,
    device_memory=80 * 2**30,
)

# One H200. Nominal: PCIe 5.0 x16, HBM3e, arithmetic without tensor cores, 141 GB.
H200 = _data_sheet(
    name="h200",
    host_link=45e9,
    peer_link=450e9,
    reuse_link=3.6e12,
    contiguous_link=50e9,
    structure_link=50e9,
    host_add=40e9,
    memory=4.8e12,
    arithmetic=67e12,
    device_memory=141 * 10**9,
)

# One RTX A5000. Not measured: PCIe 4.0 x16 at what a copy reaches, GDDR6 and float32 arithmetic as NVIDIA's data sheet
# has them (768 GB/s, 27.8 TFLOPS, 24 GB), NVLink in one direction.
A5000 = _data_sheet(
    name="a5000",
    host_link=22e9,
    peer_link=56e9,
    reuse_link=0.7e12,
    contiguous_link=25e9,
    structure_link=25e9,
    host_add=20e9,
    memory=768e9,
    arithmetic=27.8e12,
    device_memory=24 * 2**30,
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
    optional = {"devices", "staged", "network_link", "recall_link", "spill_link", *OPTIONAL_BYTES}
    if not isinstance(entries, dict) or not known - optional <= entries.keys() <= known:
        found = set(entries) if isinstance(entries, dict) else set()
        raise InputError(
            f"{path}: not a hardware profile; missing {sorted(known - optional - found)}, unknown "
            f"{sorted(found - known)}: write one with `hongtu doctor --measure {path}`"
        )
    try:
        return Hardware(**entries)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
