"""Files of rows that host memory does not hold: the memory that they take all the same, and disks that fail."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hongtu.bench import profile as rate
from hongtu.engine import blocks, disk, stores
from hongtu.engine.executor import Executor
from hongtu.engine.host_store import HostStore
from hongtu.errors import InputError, OutputError
from hongtu.host import drop_file_pages, in_large_pages
from hongtu.metrics import Traffic
from hongtu.plan.memory.disk import DiskLayout, _room
from hongtu.plan.memory.host import Kept
from hongtu.plan.program.on_disk import Summed
from hongtu.plan.program.ref import Ref
from hongtu.train import outputs
from tests import problems, training
from tests.models import SIX
from tests.staged import on_disk

OTHER = {torch.bfloat16: torch.float32, torch.float32: torch.bfloat16}


def make(folder, **options):
    torch.manual_seed(0)
    with on_disk(folder) as spills:
        problem = problems.problem_of(problems.awkward_graph(), width=256)
        return training.make_trainer(SIX[1], problem, (2, 4), device_memory="smallest", **spills, **options)


def cached_bytes(file, nbytes):
    """Of a file, in memory."""
    with mmap.mmap(file, nbytes, access=mmap.ACCESS_COPY) as pages:
        flags = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()
        view = (ctypes.c_char * nbytes).from_buffer(pages)
        ctypes.CDLL(None, use_errno=True).mincore(view, ctypes.c_size_t(nbytes), flags)
        del view
    return mmap.PAGESIZE * sum(flag & 1 for flag in flags)


@pytest.fixture
def drops(tmp_path):
    """Skips where the file system is memory, or keeps its pages."""
    with open(tmp_path / "pages", "w+b") as stream:
        stream.write(bytes(1 << 16))
        stream.flush()
        drop_file_pages(stream.fileno(), written=True)
        if cached_bytes(stream.fileno(), 1 << 16):
            pytest.skip("this file system keeps the pages of its files in memory")


NOTHING = SimpleNamespace(whole=SimpleNamespace(features=None))  # an artifact without features


@pytest.fixture(params=["around the cache", "through it"])
def way(request, monkeypatch):
    if request.param == "through it":
        monkeypatch.delattr("os.O_DIRECT", raising=False)
    monkeypatch.setattr(blocks, "CACHED", 1 << 16)


def test_the_system_keeps_few_pages_of_the_file(tmp_path, drops, way):
    made, rows = stores.DiskStore(str(tmp_path), 1 << 23, 0), np.ones(1 << 14, np.uint8)
    for move in (made.write, made.read):
        for begin in range(0, made.nbytes, rows.nbytes):
            move(begin, rows)
            ahead = 1 << 22  # what the system may have read beyond: far less than all
            assert cached_bytes(made._file.fileno(), made.nbytes) <= blocks.CACHED + ahead
    made.close()


def test_predictions_that_are_written_to_a_file_do_not_stay_in_memory(tmp_path, drops, monkeypatch):
    before, after, let_go = list[int](), list[int](), disk.Disk.let_go

    def seen(self):
        file = self._stores["disk"]._file.fileno()
        os.fdatasync(file)
        for found, do in ((before, None), (after, let_go)):
            if do is not None:
                do(self)
            found.append(cached_bytes(file, self._stores["disk"].nbytes))

    monkeypatch.setattr(disk.Disk, "let_go", seen)
    monkeypatch.setattr(outputs, "BLOCK", 64)
    trainer = make(tmp_path)
    expected = trainer.predict()
    assert np.array_equal(trainer.predict(out=tmp_path / "rows.npy"), expected.numpy())
    assert max(before) > 0 and len(before) > 2 and max(after) == 0


@pytest.mark.parametrize("refused", [False, True])
def test_what_was_put_is_what_is_read(refused, tmp_path, way, monkeypatch):
    """In any order, over one another, more at a time than there is memory for, read when little of it is written."""
    nbytes, rng = 300_001, np.random.default_rng(0)
    monkeypatch.setattr(blocks, "BEHIND", 1 << 15)
    monkeypatch.setattr(blocks, "JOINED", 1 << 14)
    monkeypatch.setattr(stores, "STEP", 1 << 13)
    if refused:
        monkeypatch.setattr(blocks, "LEAST", 1 << 8)  # no disk takes so little: it says so when it is written
        monkeypatch.setattr(stores, "DISK_BLOCK", 1 << 8)
    expected = np.zeros(nbytes, np.uint8)
    with open(tmp_path / "rows", "w+b", buffering=0) as stream:
        stream.truncate(nbytes)
        put, got = blocks.Blocks(stream.fileno(), nbytes, 64), stores.File(stream, "rows")
        for _ in range(400):
            begin = int(rng.integers(nbytes))
            data = rng.integers(256, size=min(int(rng.choice([0, 5, 700, 60_000])), nbytes - begin), dtype=np.uint8)
            put.put(begin, data)
            expected[begin : begin + len(data)] = data
            begin = int(rng.integers(nbytes))
            found = np.empty(min(int(rng.choice([0, 9, 3000, 30_000])), nbytes - begin), np.uint8)
            put.settle(begin, begin + len(found))
            got.read(begin, found)
            assert np.array_equal(found, expected[begin : begin + len(found)])
        put.settle(0, nbytes)
        assert np.array_equal(np.fromfile(tmp_path / "rows", np.uint8), expected)
        with pytest.raises(OutputError, match=f"ends at byte {nbytes}, expected 7 bytes more"):
            got.read(nbytes - 3, np.empty(10, np.uint8))
        put.close(), got.close()


def test_rows_in_memory_are_those_of_their_vertices():
    """A bucket has them first, by vertex, whatever the order in which they are flushed."""
    kept, host = Kept(np.array([0]), np.array([3])), torch.ones(3, 1)
    bucket, vertices = torch.tensor([[10.0], [12.0], [15.0]]), np.array([2, 5, 0], dtype=np.int32)
    disk.add_kept(kept, bucket, vertices, np.array([False, True, True]), host)
    assert host.tolist() == [[10.0], [1.0], [13.0]], "0 is stored, 2 is added, 5 is on the disk"


@pytest.mark.parametrize("first", [0, 100, 2600], ids="they begin {} bytes behind a block".format)
@pytest.mark.parametrize("length", [1 << 10, 150_000])
def test_few_writes_bring_many_appends(length, first, tmp_path, monkeypatch):
    """Appends to as many places in turns as were told: each block is written once, whole, but where two places meet."""
    written, pwrite = [], blocks.os.pwrite
    monkeypatch.setattr(blocks.os, "pwrite", lambda file, data, at: written.append(len(data)) or pwrite(file, data, at))
    places = 64
    with open(tmp_path / "rows", "w+b", buffering=0) as stream:
        put = blocks.Blocks(stream.fileno(), (places << 20) + first, places)
        turns = range((1 << 20) // length)
        for turn in turns:
            for place in range(places):
                put.put((place << 20) + first + turn * length, np.full(length, place, np.uint8))
        put.settle(0, (places << 20) + first)
        parts = [nbytes for nbytes in written if nbytes % put.block]
        assert sum(written) == len(turns) * places * length and len(parts) <= 2 * places + 1
        put.close()


def test_few_calls_read_a_chunk(tmp_path, monkeypatch):
    """Each takes Python's lock from whoever computes beside it."""
    calls, preadv, rows = [], stores.os.preadv, np.arange(10 << 20, dtype=np.uint8)
    monkeypatch.setattr(stores.os, "preadv", lambda file, into, at: calls.append(at) or preadv(file, into, at))
    rows.tofile(tmp_path / "rows")
    with open(tmp_path / "rows", "rb", buffering=0) as stream:
        got, found = stores.File(stream, "rows"), np.zeros((10 << 20) - 5000, np.uint8)
        got.read(5000, found)
        assert np.array_equal(found, rows[5000:])
        assert calls == [at + 4096 for at in (0, 4 << 20, 8 << 20)]
        got.close()


@pytest.mark.parametrize("rows, width, begin", [(5000, 257, 5002), (3, 1, 0), (70_000, 33, 4096), (0, 8, 2)])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_few_calls_read_rows_that_are_cast(kind, rows, width, begin, tmp_path, monkeypatch):
    calls, preadv = [], stores.os.preadv
    monkeypatch.setattr(stores.os, "preadv", lambda file, into, at: calls.append(at) or preadv(file, into, at))
    begin *= kind.itemsize // 2  # numbers are aligned to their size
    there = torch.randn(rows, width).to(kind)
    (tmp_path / "rows").write_bytes(bytes(begin) + there.view(torch.uint8).numpy().tobytes() + b"behind")
    with open(tmp_path / "rows", "rb", buffering=0) as stream:
        got, found = stores.File(stream, "rows"), torch.zeros(rows, width, dtype=OTHER[kind])
        disk._read_as(kind, got, begin, found)
        assert torch.equal(found, there.to(found.dtype))
        assert len(calls) <= 1 + (begin % 4096 + there.nbytes) // stores.STEP
        got.close()


@pytest.mark.parametrize("header", [0, 128, 4032, 100])
def test_rows_come_to_where_they_are_used(header, tmp_path, monkeypatch):
    """No second copy is made of a chunk that begins with a cache line, wherever its file has it; nothing else of the
    memory is written to, and the file ends inside of a block."""
    rng, row, copied = np.random.default_rng(0), 256, []
    given = rng.integers(256, size=header + 96 * row, dtype=np.uint8)
    given.tofile(tmp_path / "rows")
    pieces = stores.File.pieces
    monkeypatch.setattr(stores.File, "pieces", lambda *these: copied.append(these) or pieces(*these))
    with open(tmp_path / "rows", "rb", buffering=0) as stream:
        got, memory = stores.File(stream, "rows"), in_large_pages(1 << 16)
        for lo, hi in ((0, 32), (5, 37), (64, 96), (40, 41)):
            memory[:] = 7
            room, begin = memory[8192 : 8192 + _room(32, row) * row], header + lo * row
            at = got.read_within(begin, (hi - lo) * row, room)
            assert np.array_equal(room[at : at + (hi - lo) * row], given[begin : header + hi * row])
            assert at % 64 == 0 and (memory[:8192] == 7).all() and (memory[8192 + len(room) :] == 7).all()
        assert not copied or header == 100 or got._uncached._direct is None
        with pytest.raises(OutputError, match=f"ends at byte {len(given)}, expected 256 bytes more"):
            got.read_within(header + 95 * row, 2 * row, memory)
        got.close()


def test_the_disk_has_no_threads_of_torch(tmp_path):
    """OpenMP would have more of them than there are processors, and let all sleep wherever one waits."""
    rows, seen, host = torch.ones(4096, 64), [], HostStore(4096, torch.float32)
    made = disk.Disk(str(tmp_path), DiskLayout({"disk": 1 << 20}), Traffic(), host, NOTHING)
    device = SimpleNamespace(beside=lambda name, number: rows)
    chunk = SimpleNamespace(i=0, own_number=0, set=0, device=device)
    chunk.in_window, chunk.span = lambda ref: rows, lambda selection: (0, 4096)
    kept = Kept(np.array([0]), np.array([0]))
    nothing = Ref(tensor="rows", where="disk", rows=Summed((), False), kept=kept)

    def work():
        seen.append(len(os.listdir("/proc/self/task")))
        made.recall(nothing, chunk)
        seen.append(len(os.listdir("/proc/self/task")))

    thread = threading.Thread(target=work)
    thread.start(), thread.join()
    assert seen[1] <= seen[0] and not rows.any()
    made.close()


@pytest.mark.long
def test_runs_may_share_a_directory(tmp_path):
    first, second = make(tmp_path), make(tmp_path)
    losses = [[trainer.train_epoch().loss for trainer in (first, second)] for _ in range(2)]
    assert all(one == other for one, other in losses) and losses[1][0] < losses[0][0]


@pytest.mark.long
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_file_that_may_not_grow(when, tmp_path):
    """The system refuses writes beyond a size: the run ends with the directory and a remedy, and leaves nothing."""
    trainer = make(tmp_path)
    if when == "later":
        trainer.train_epoch()
        trainer.save(tmp_path / "snapshot.pt")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OutputError, match=rf"{tmp_path}.*File too large.*ulimit -f"):
            trainer.train_epoch()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    if when == "later":
        after = make(tmp_path)
        after.load(tmp_path / "snapshot.pt")
        assert after.train_epoch().epoch == 2
    assert {file.name for file in tmp_path.iterdir()} <= {"snapshot.pt"}


def test_a_pass_finds_no_memory_that_is_kept_for_others(tmp_path, monkeypatch):
    """Vertex rows and staging memory have pools of their own: together these would hold more than is out at a time."""
    trainer, idle = make(tmp_path), []
    allocate = Executor._allocate

    def noted(executor, p):
        idle.append(executor.host._pool.idle + sum(device._staging_pool.idle for device in executor.devices))
        allocate(executor, p)

    monkeypatch.setattr(Executor, "_allocate", noted)
    trainer.train_epoch()
    trainer.train_epoch()
    assert len(idle) > 4 and not any(idle)


@pytest.mark.long
def test_a_directory_that_goes_takes_nothing_with_it(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    trainer = make(folder)
    before = trainer.train_epoch().loss
    shutil.rmtree(folder)
    assert trainer.train_epoch().loss < before
    folder.write_text("in the way")
    for wrong in (folder, folder / "below"):
        with pytest.raises(InputError, match="not a writable directory"):
            make(wrong)
    again = make(tmp_path / "made" / "below")
    assert again.train_epoch().loss == pytest.approx(before) and (tmp_path / "made" / "below").is_dir()
    with pytest.raises(InputError, match="spill: found 3, expected the path of a directory"):
        make(3)


def test_a_trainer_that_goes_gives_its_space_back(tmp_path):
    def open_files():
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.islink(link)]

    trainer = make(tmp_path)
    trainer.train_epoch()
    assert any(str(tmp_path) in file for file in open_files())
    del trainer
    gc.collect()
    assert not any(str(tmp_path) in file for file in open_files())


def test_a_disk_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    trainer = make(tmp_path)
    trainer.train_epoch()

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    store = trainer._runtime.engine._disk._stores["disk"]
    monkeypatch.setattr(store._uncached, "around", broken)
    with pytest.raises(OutputError, match=rf"{tmp_path}: cannot be read \(Input/output error\); look whether its disk"):
        trainer.train_epoch()


@pytest.mark.long
def test_an_engine_that_is_replaced_leaves_its_space_to_the_next(tmp_path, monkeypatch):
    trainer = make(tmp_path)
    before, held = trainer.train_epoch().loss, trainer._runtime.engine
    needed = held.plan.disk.nbytes["disk"]
    free = [needed]

    class Counted(disk.Disk):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            free[0] -= needed

        def close(self):
            super().close()
            free[0] += needed

    monkeypatch.setattr("hongtu.engine.engine.Disk", Counted)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": free[0]}))
    for _ in range(3):  # though somebody holds the last one, as the error does that stopped it
        held = trainer._runtime.engine
        trainer._runtime._replace_engine(trainer.plan)
        assert trainer.train_epoch().loss < before and free[0] == 0
    del held


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.engine.test_disk import disk, make
write, left = disk.Disk._write, [20]
def killed(self, *arguments):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, *arguments)
disk.Disk._write = killed
make(Path(sys.argv[1])).train_epoch()
"""


@pytest.mark.long
def test_a_killed_run_leaves_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not list(tmp_path.iterdir())


def test_the_rate_of_a_disk_is_that_of_writing_and_reading(tmp_path, monkeypatch):
    """A write takes three ticks of a clock and a read one."""
    clock = iter((0, 3, 3, 4))
    monkeypatch.setattr(rate, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(rate, "BLOCKS", 1)
    monkeypatch.setattr(rate, "BLOCK", 1 << 16)
    assert rate.disk_rate(tmp_path) == pytest.approx(2 * (1 << 16) / (3 + 1))
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="not a writable directory"):
        rate.disk_rate(tmp_path / "none")


FULL = """
import os, sys
import numpy as np
import pytest
from hongtu import host
from hongtu.errors import InputError, OutputError
from tests.engine.test_disk import make
folder, free = sys.argv[1], os.statvfs(sys.argv[1]).f_bavail * os.statvfs(sys.argv[1]).f_frsize
with pytest.warns(UserWarning, match="file system is memory"):
    trainer = make(folder)
with open(f"{folder}/others", "wb", buffering=0) as stream:
    with pytest.raises(OSError, match="No space left"):
        while True:
            stream.write(bytes(4096))
    first, second = trainer.train_epoch().loss, trainer.train_epoch().loss
    assert second < first, "its space was taken before"
    with pytest.raises(InputError, match=r"takes \\d+ bytes there, 0 are free"):
        make(folder).train_epoch()
    host.shutil.disk_usage = lambda path: type("Usage", (), {"free": 1 << 40})
    with pytest.raises(OutputError, match=f"{folder}.*No space left on device"):
        make(folder).train_epoch()
assert os.listdir(folder) == ["others"]
print("done")
"""


@pytest.mark.long
def test_a_full_disk(tmp_path):
    """On a file system of 4 MiB, in a mount namespace of its own."""
    mounted = f"mount -t tmpfs -o size=4m tmpfs {tmp_path}"
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*words, mounted], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    run = [*words, f'{mounted} && exec "$0" -c "$1" {tmp_path}', sys.executable, FULL]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
