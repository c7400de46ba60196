"""What one pass needs of one chunk on its device: the destinations' rows, and the structure of the in-edges."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device
from hongtu.engine.host_store import HostStore
from hongtu.engine.structure import edge_arrays, structure_there
from hongtu.graph.sparse_rows import PARTS, positions
from hongtu.nn.block import Block, Rows
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.memory.structure import Needs
from hongtu.plan.passes.definition import FEATURES, Pass


class ChunkInputs:
    """Brings everything when it is made; ``open`` gives it to whoever computes.

    Args:
        own_rows: by resident tensor, the rows of the device's partition.
        pieces: by vertex tensor, rows that the chunk has kept.
        number: of the staging set.

    Attributes:
        first, end: the chunk's vertices.
        num_dst: D, those that the pass computes.
        index: int32 [D], their positions in the chunk, or None for all of them.
        known_bits: uint8 [D], on the host, which terms of the loss each has, where the pass has the loss.
        vertex: destinations' rows by vertex tensor, and "labels" and "loss_bits" where the pass has the loss.
        slots: int32 [S], the slot of every source, where the pass has edges; so has it ``block``.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        p: Pass,
        needs: Needs,
        device: Device,
        host: HostStore,
        own_rows: dict[str, Tensor],
        pieces: dict[str, Tensor],
        i: int,
        batch: int,
        chunk: int,
        number: int,
    ) -> None:
        self._p, self._needs, self._device, self._host, self._number = p, needs, device, host, number
        self._own_rows, self._pieces, self._num_graph_edges = own_rows, pieces, plan.topology.num_edges
        view = plan.view(p)
        self.first, self.end = (int(x) for x in view.chunk_start[chunk : chunk + 2])
        self._offset = int(view.partition_start[i])
        active = view.active_rows(chunk)
        self.index = None if active is None else active - np.int32(self.first)
        self.num_dst = self.end - self.first if active is None else len(active)
        self._here: dict[str, Tensor] = {}
        if self.index is not None:
            self._bring_array("row_in_chunk", self.index)
        self._there = structure_there(plan, p, device, i, chunk) if plan.structure_stays(p) else {}
        if not self._there:
            edges = edge_arrays(plan, p, i, batch, chunk)
            for name in needs.structure:
                if name in edges:
                    self._bring_array(name, edges[name])
                else:
                    self._bring(name, "topology")
        if needs.identity and active is not None:
            self._bring_array("active", active)
        if needs.labels:
            self._bring("labels", "read")
            self._bring("loss_bits", "read")
            bits = host.rows("loss_bits", self.first, self.end).numpy()
            self.known_bits = bits if self.index is None else bits[self.index]
        self._rows = (*p.inputs, *p.gradients)
        for name in self._rows:
            if name == FEATURES and plan.shape.sparse_input is not None:
                self._bring_sparse(name)
            elif name not in own_rows and name not in pieces:
                self._bring(name, "read")

    def open(self) -> None:
        """Inside ``compute``: make what was brought into what layers see."""
        p = self._p
        here = {name: self._lasting(tensor) for name, tensor in self._here.items()}
        here |= self._there | self._pieces
        if f"{FEATURES} value" in here:
            here[FEATURES] = self._dense(FEATURES, here)
        self.position = here.get("row_in_chunk")
        for name in self._rows:
            if name in self._own_rows:
                here[name] = self._resident(name)
        self.rows = Rows(ids=here["ids"], statistics=here.get("statistics"))
        self.vertex = {name: here[name] for name in (*p.inputs, *p.gradients, "labels", "loss_bits") if name in here}
        self.block: Block | None = None
        if self._needs.edges:
            self.slots = here["slot_of_source"]
            none = self.slots.new_empty(0)
            self.block = Block(
                indptr=here["indptr"],
                local_source=here["local_source"],
                sources=here.get("sources", none),
                first=self.first,
                edge_weight=here.get("edge_weight"),
                rows=self.rows,
                edge_id_start=here.get("edge_id_start", none),
                num_graph_edges=self._num_graph_edges,
                active=here.get("active"),
                edge_features=here.get("edge_features"),
                edge_type=here.get("edge_type"),
            )

    def forget_pieces(self) -> None:
        """Refer no longer to rows that the chunk has kept."""
        for name in self._pieces:
            self.vertex.pop(name, None)
        self._pieces = {}

    def own(self, name: str) -> Tensor:
        """The chunk's rows of a resident tensor."""
        return self._own_rows[name][self.first - self._offset : self.end - self._offset]

    def _bring(self, name: str, link: str) -> None:
        """The destinations' rows of a host tensor."""
        host = self._host.rows(name, self.first, self.end)
        if self.index is None:
            self._here[name] = self._device.bring(name, self._number, host, link)
        else:
            self._here[name] = self._device.bring_rows(name, self._number, host, self.index, link)

    def _bring_sparse(self, name: str) -> None:
        """The destinations' rows of a CSR host tensor."""
        start, column, value = (self._host[f"{name} {part}"] for part in PARTS)
        if self.index is None:
            starts = start[self.first : self.end + 1]
            lo, hi = int(starts[0]), int(starts[-1])
            parts = starts - lo, column[lo:hi], value[lo:hi]
        else:
            rows = self.index.astype(np.int64) + self.first
            at = torch.from_numpy(positions(start.numpy(), rows))
            count = start[rows + 1] - start[rows]
            parts = torch.cat([count.new_zeros(1), count.cumsum(0)]), column[at], value[at]
        for part, tensor in zip(PARTS, parts, strict=True):
            self._here[f"{name} {part}"] = self._device.bring(f"{name} {part}", self._number, tensor, "read")

    def _dense(self, name: str, here: dict[str, Tensor]) -> Tensor:
        """[D, F], in the buffer that the pass has for it."""
        start, column, value = (here[f"{name} {part}"] for part in PARTS)
        rows = self._device.staging(name, self._number)[: self.num_dst].zero_()
        row = torch.repeat_interleave(start.diff(), output_size=len(column))
        rows.index_put_((row, column.long()), value)
        return rows

    def _bring_array(self, name: str, array: np.ndarray) -> None:
        self._here[name] = self._device.bring(name, self._number, array, "topology")

    def _resident(self, name: str) -> Tensor:
        rows = self.own(name)
        if self.position is None:
            return rows
        part = self._device.staging(name, self._number)[: self.num_dst]
        return self._lasting(torch.index_select(rows, 0, self.position, out=part))

    def _lasting(self, x: Tensor) -> Tensor:
        """A buffer's content, which what is kept until backward may refer to; another chunk will use the buffer."""
        return x.clone() if self._p.keep and self._p.direction == "forward" else x
