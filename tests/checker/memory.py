"""Where the rows of a program's references lie while it is checked, pass by pass and batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hongtu.plan.program.program import PassProgram
from hongtu.plan.program.ref import Ref, Stores
from hongtu.plan.program.rows import SOURCES, OwnRows, Picked
from tests.checker.held import Held, demand
from tests.checker.spilled import Spilled


class HeldRows(NamedTuple):
    """Rows of a reference that lie in one memory: where there, and, of slots, which rows they must be."""

    held: Held
    at: np.ndarray
    rows: np.ndarray | None = None
    stores: bool | np.ndarray | None = None


class AllHeld:
    """All that is there.

    Args:
        there: by tensor and memory what it holds, of every device where it is on these.

    Attributes:
        disk: what lies there, or is on its way.
        picks: by array that was brought, what it says, of every device.
        sources: by chunk, their slots.
    """

    def __init__(self, there: dict[tuple[str, str], list[Held]]) -> None:
        self.there, self.disk = there, Spilled()

    def begin_pass(self, p: PassProgram) -> None:
        self.p, self.devices, self.first = p, range(len(p.buffers)), p.view.partition_start.tolist()

    def begin_batch(self, step: int, batch: int) -> None:
        self.step, self.batch, self.chunks = step, batch, self.p.busy(batch)
        self.picks: dict[str, list[np.ndarray]] = {}
        self.sources: dict[int, np.ndarray] = {}
        self.disk.begin(self.p, batch)

    def own(self, device: int) -> int:
        """How many vertices its partition has."""
        return int(self.first[device + 1] - self.first[device])

    def find(self, name: str, where: str, device: int = 0) -> Held:
        """What a tensor's memory holds."""
        found = self.there.get((name, where))
        demand(found is not None, f"{name} ({where}) is not there")
        assert found is not None
        return found[device]

    def parts(self, ref: Ref) -> Iterator[HeldRows]:
        """Of every device or chunk."""
        if isinstance(ref.rows, Picked):
            for i in self.devices:
                yield from self._picked(ref, ref.rows, i)
        for i, chunk in self.chunks if ref.rows is SOURCES or isinstance(ref.rows, OwnRows) else ():
            view, own = self.p.view, ref.rows if isinstance(ref.rows, OwnRows) else None
            rows = view.neighbour_set(chunk) if own is None else own.numbers(view, chunk)
            stores = ref.access.among(rows) if isinstance(ref.access, Stores) else None
            if own is None:
                yield HeldRows(self.find(ref.tensor, "device", i), self.sources[chunk], rows, stores)
            elif ref.where == "device":
                yield HeldRows(self.find(ref.tensor, "device", i), rows - own.row_of(self.first[i]), None, stores)
            elif ref.where == "host" and (i, chunk) in self.disk.on_disk(ref.kept):
                window = self.disk.own(ref, i, chunk, writes=stores is not None)
                first = own.row_of(int(view.chunk_start[chunk]))
                yield HeldRows(window, rows - first, None, None if stores is None else True)  # added up later
            elif ref.where == "chunk" and stores is not None:
                (held,) = self.there.setdefault((ref.tensor, "chunk"), [Held(ref.tensor, 0)])
                yield HeldRows(held.grow(rows), rows, None, stores)
            else:
                yield HeldRows(self.find(ref.tensor, ref.where), rows, None, stores)

    def _picked(self, ref: Ref, rows: Picked, i: int) -> Iterator[HeldRows]:
        row, index, access = rows.picks.column("row", i, self.batch), self._brought(ref, rows, i), ref.access
        if isinstance(access, tuple):
            access = Stores(access[i].among(rows.picks.intervals(i, self.batch)))
        stores = access.where if isinstance(access, Stores) else None
        if ref.where == "peer":
            for peer, part in rows.picks.by_peer(i, self.batch):
                yield HeldRows(self.find(ref.tensor, "device", peer), index[part], row[part], stores)
        elif ref.where == "device":
            yield HeldRows(self.find(ref.tensor, "device", i), index, row, stores)
        elif rows.column == "place":
            bucket = self.disk.bucket(ref.tensor, i, row, writes=stores is not None)
            yield HeldRows(bucket, index, row, None if stores is None else True)
            if stores is not None and ref.kept is not None and (here := row < ref.kept.end[i]).any():
                host = self.find(ref.tensor, "host")  # where those that are in memory are added up
                yield HeldRows(host, row[here], None, np.broadcast_to(stores, row.shape)[here])
        else:
            yield HeldRows(self.find(ref.tensor, "host"), index, None, stores)

    def _brought(self, ref: Ref, rows: Picked, i: int) -> np.ndarray:
        """What was brought to a device of where the rows of a reference are."""
        column, name = rows.array(i, self.batch), rows.at
        if not name:
            return column
        demand(name in self.picks, f"{name} was not brought")
        found = self.picks[name][i]
        count = f"{name} has {len(found)} entries, {len(column)} rows move"
        demand(len(found) == len(column), f"device {i}: {count}")
        same = ref.where not in ("host", "window") or np.array_equal(found, column)
        demand(same, f"device {i}: {name} are of other rows")
        return found
