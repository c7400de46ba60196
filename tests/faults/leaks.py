"""Long runs: host and device memory, file handles and threads must be what they were when the run had settled."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hongtu.metrics import EpochRecord
from tests.faults.outcome import Outcome
from tests.faults.run import make_trainer, prepare

SETTLED = 3  # epochs after which nothing may grow; all that recurs has run twice by then
SLACK = 2 << 20  # bytes by which the process may breathe: allocators give pages back late
TEAM = 4  # threads that come and go with what else the machine does
RECORD = 4 << 10  # bytes of an epoch's record, which ``fit`` returns and so keeps


@dataclass(frozen=True)
class Taken:
    """What a process holds."""

    resident_bytes: int
    open_files: int
    threads: int
    device_bytes: tuple[int, ...]


def taken(record: EpochRecord) -> Taken:
    """What this process holds now; ``record`` is of the epoch just trained."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Taken(
        resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        open_files=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        device_bytes=tuple(record.peak_bytes.values()),
    )


def train_long(epochs: int, every: int = 1, vertices: int = 2000, edges: int = 12_000, **options: object) -> Outcome:
    """Every epoch is logged, and every so many are evaluated and kept in a snapshot; each is a try."""
    outcome = Outcome(
        f"a run of {epochs} epochs, evaluated, logged and kept in snapshots",
        "device memory and files as once settled; at most a team of threads and 2 MiB of host memory more, and 4 KiB a "
        "record",
    )
    first = max(SETTLED, 2 * every)
    seen: list[Taken] = []
    with tempfile.TemporaryDirectory(prefix="hongtu-faults-") as folder:
        trainer = make_trainer(prepare(Path(folder) / "artifact", vertices=vertices, edges=edges), **options)
        trainer.fit(
            epochs, eval_every=every, run_dir=Path(folder) / "run", save_every=every, progress=False,
            on_epoch=lambda record: seen.append(taken(record)),
        )  # fmt: skip
    settled = seen[first]
    for epoch, now in enumerate(seen[first:], first):
        # fewer: what ran before in this process is collected
        more = now.open_files > settled.open_files or now.threads > settled.threads + TEAM
        good = not more and now.device_bytes == settled.device_bytes
        grown = now.resident_bytes - settled.resident_bytes
        outcome.expect(
            good and grown <= SLACK + RECORD * (epoch - first),
            f"epoch {epoch}: {grown} bytes more, {now} after {settled}",
        )
    last = seen[-1]
    outcome.note = (
        f"host memory {settled.resident_bytes / 2**20:.1f} MiB after epoch {first + 1}, "
        f"{last.resident_bytes / 2**20:.1f} MiB after epoch {epochs}; {last.open_files} files, {last.threads} threads"
    )
    return outcome
