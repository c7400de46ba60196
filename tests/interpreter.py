"""The slow interpreter of programs: the definition of what their instructions mean, and the oracle of their tests.

It runs a program in plain numpy, a method for each kind of instruction; torch computes what layers do. Memory that
nobody has written is NaN. Streams are not looked at: everything is done at once.

Legend: D destinations, S sources of a chunk.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import torch

from hongtu.plan.memory.structure import FLOAT
from hongtu.plan.program.on_disk import Bucket, Summed
from hongtu.plan.program.rows import FRONT, PartOfChunk, Picked, SlotsOfSources, SparsePart


def undefined(shape, dtype=FLOAT):
    return np.full(shape, np.nan) if dtype == FLOAT else np.full(shape, 99, dtype)


class Interpreter:
    """Runs passes.

    Args:
        model: what layers and the loss compute: ``stage``, ``aggregate``, ``combine`` and ``loss``.
        host: the vertex tensors that are there before the first pass, [V, ...].

    Attributes:
        moved: rows by the kind of instruction that moved them; numbers recalled and spilled.
        loss: the sum of what chunks gave.
    """

    def __init__(self, partitions, model, host):
        self.model, self.host, self.loss, self.moved = model, dict(host), 0.0, Counter()
        self.placed = [{} for _ in range(partitions)]
        self.pieces = [defaultdict(dict) for _ in range(partitions)]
        self.graphs = [{} for _ in range(partitions)]
        self.disk = {}  # rows by their first byte
        self.posted = {}  # by tensor, rows that have left

    def run(self, passes):
        run_ranks([self], [passes])

    def steps(self, passes):
        """Run passes; gives every instruction by which ranks exchange rows instead of running it."""
        for self.p in passes:
            p = self.p
            yield from self.do(p.before)
            self.buffers = [
                {name: undefined((b.sets, *b.shape), b.dtype) for name, b in of.items()} for of in p.buffers
            ]
            for step, self.batch in enumerate(p.order):
                self.set, self.brought = step % p.sets, {}
                self.buckets = [{} for _ in self.placed]
                self.chunks = [Chunk(self, i, number) for i, number in p.busy(self.batch)]
                yield from self.do((*p.recalls, *p.body))
            yield from self.do((*p.after, *p.frees))

    def do(self, body):
        for x in body:
            if x.verb == "cross":
                yield x
            else:
                getattr(self, x.verb)(x)

    def memory(self, i, name):
        """A tensor that stays, or a buffer that a pass has once."""
        return self.placed[i][name] if name in self.placed[i] else self.buffers[i][name][0]

    def stage(self, i, name, array):
        """An array in its staging buffer: the next batch that has the set writes over it."""
        part = self.buffers[i][name][self.set][: len(array)]
        part[...] = array
        return part

    def ignore(self, x):
        pass

    wait = signal = follow = meet = ignore

    def place(self, x):
        there = [self.host] if x.where == "host" else self.placed
        for memory, rows in zip(there, x.rows, strict=True):
            assert x.name not in memory, f"{x.name} is placed twice"
            memory[x.name] = undefined((rows if x.kept is None else len(self.host["ids"]), *x.shape), x.dtype)
            if x.zero is not False:
                memory[x.name][... if x.zero is True else x.zero] = 0

    def free(self, x):
        for memory in {"host": [self.host], "device": self.placed, "chunk": self.pieces}[x.where]:
            memory.pop(x.name, None) if x.where == "chunk" else memory.pop(x.name)

    def topology(self, x):
        if isinstance(x.src.rows, Picked):
            self.brought[x.dst.tensor] = [
                self.stage(i, x.dst.tensor, x.src.rows.array(i, self.batch)) for i in range(len(self.placed))
            ]
        else:
            for chunk in self.chunks:
                chunk.bring(x)

    read = topology

    def count(self, x, rows):
        self.moved[x.verb] += len(rows)

    def at(self, ref):
        """Where rows are, as it was brought to every device."""
        return self.brought[ref.rows.at]

    def load(self, x):
        for i, (rows, slots) in enumerate(zip(self.at(x.src), self.at(x.dst), strict=True)):
            host = self.host if x.src.rows.column == "row" else self.buckets[i]
            self.memory(i, x.dst.tensor)[slots] = host[x.src.tensor][rows]
            self.count(x, rows)

    def pull(self, x):
        for i, (source, target) in enumerate(zip(self.at(x.src), self.at(x.dst), strict=True)):
            for k, peer in enumerate(x.src.rows.picks.column("peer", i, self.batch)):
                self.memory(i, x.dst.tensor)[target[k]] = self.memory(peer, x.src.tensor)[source[k]]
            self.count(x, source)

    def zero_rows(self, x):
        for i, slots in enumerate(self.at(x.at)):
            self.memory(i, x.at.tensor)[slots] = 0

    def push(self, x):
        writers, cache = Counter(), x.dst.tensor
        for i, (source, target) in enumerate(zip(self.at(x.src), self.at(x.dst), strict=True)):
            for k, peer in enumerate(x.dst.rows.picks.column("peer", i, self.batch)):
                self.memory(peer, cache)[target[k]] += self.memory(i, cache)[source[k]]
                writers[peer, target[k]] += 1
            self.memory(i, cache)[source] = np.nan
            self.count(x, source)
        several = {(self.batch, peer) for (peer, _), count in writers.items() if count > 1}
        assert several == {(batch, peer) for batch, peer in x.dst.rows.picks.contended if batch == self.batch}, (
            "adds that race"
        )

    def flush(self, x):
        name, picks, bucket = x.dst.tensor, x.dst.rows.picks, x.dst.rows.column == "place"
        for i, slots in enumerate(self.at(x.src)):
            pick, rows = picks.intervals(i, self.batch), x.dst.rows.array(i, self.batch)
            values, stores = (
                self.memory(i, x.src.tensor)[slots],
                np.broadcast_to(x.dst.access[i].among(pick), len(rows)),
            )
            if bucket:
                self.buckets[i][name] = undefined((len(rows), values.shape[1]))
                put(self.buckets[i][name], rows, values, True)
                rows = picks.column("row", i, self.batch)
            here = np.flatnonzero(rows < x.dst.kept.end[i]) if bucket else np.arange(len(rows))
            put(self.host.get(name), rows[here], values[here], stores[here])
            self.memory(i, x.src.tensor)[slots] = np.nan
            self.count(x, rows)

    def write(self, x):
        for chunk in self.chunks:
            chunk.deliver(x.dst)

    # the disk

    def spilled(self, begin, rows):
        """Rows go to the disk, from a byte on."""
        for k, row in enumerate(rows):
            self.disk[begin + k * row.nbytes] = row.copy()
        self.moved["spilled"] += len(rows) * rows.shape[1]

    def recalled(self, begin, count, columns):
        self.moved["recalled"] += count * columns
        return np.array([self.disk[begin + k * columns * 8] for k in range(count)]).reshape(count, columns)

    def recall(self, x):
        if not isinstance(x.src.rows, Bucket):
            for chunk in self.chunks:
                chunk.recall(x.src)
            return
        name, region, picks = x.src.tensor, x.src.rows.region, x.src.rows.picks
        for i, (buckets, begin) in enumerate(zip(region.buckets, region.begin, strict=True)):
            columns = self.buffers[i]["cache"].shape[-1]
            first, count = buckets.begin[self.batch].min(), buckets.count[self.batch].sum()
            rows = np.sort(picks.column("row", i, self.batch))
            here = rows[rows < x.src.kept.end[i]]
            kept = self.host[name][here] if len(here) else np.zeros((0, columns))
            self.buckets[i][name] = np.concatenate([kept, self.recalled(begin + first * columns * 8, count, columns)])

    def spill(self, x):
        if not isinstance(x.dst.rows, Bucket):
            for chunk in self.chunks:
                chunk.spill(x.dst)
            return
        region, picks = x.dst.rows.region, x.dst.rows.picks
        for i, (buckets, begin) in enumerate(zip(region.buckets, region.begin, strict=True)):
            rows = self.buckets[i][x.dst.tensor]
            at = int((picks.column("row", i, self.batch) < x.dst.kept.end[i]).sum())
            for first, count in zip(buckets.begin[self.batch], buckets.count[self.batch], strict=True):
                self.spilled(begin + first * rows.shape[1] * 8, rows[at : at + count])
                at += count

    # the ranks

    def post(self, x):
        """Rows that are as they stay are copied: whatever becomes of them later does not arrive."""
        step, rows = self.p.order.index(self.batch), self.posted.setdefault(x.tensor, {})
        for index, steps in zip(x.crossing.gives if x.link == "fetch" else x.crossing.takes, x.steps, strict=True):
            rows |= {row: self.host[x.tensor][row].copy() for row in index[steps == step].tolist()}

    def ship(self, x):
        """Nothing: arrays are there when they are brought."""

    def compute(self, x):
        for chunk in self.chunks:
            for y in x.body:
                with torch.set_grad_enabled(x.graph):
                    chunk.call(y)


def run_ranks(ranks, programs):
    """Interpreters run passes of theirs side by side, and exchange rows when all have come to it."""
    runs = [rank.steps(passes) for rank, passes in zip(ranks, programs, strict=True)]
    while any(asked := [next(run, None) for run in runs]):
        assert len({(x.link, x.tensor) for x in asked}) == 1, "ranks wait for different things"
        exchange(ranks, asked)


def exchange(ranks, asked):
    """Rows go from their owners to those that take them, or their gradients back; rank by rank."""
    fetches = asked[0].link == "fetch"
    sent = [rank.host[x.tensor].copy() for rank, x in zip(ranks, asked, strict=True)]
    for rank, rows, x in zip(ranks, sent, asked, strict=True):
        for row, values in rank.posted.pop(x.tensor, {}).items():
            rows[row] = values
    for number, (rank, x) in enumerate(zip(ranks, asked, strict=True)):
        rank.moved[x.link] += x.crossing.rows
        for rows, theirs, other in zip(sent, asked, range(len(ranks)), strict=True):
            if fetches:
                rank.host[x.tensor][x.crossing.takes[other]] = rows[theirs.crossing.gives[number]]
            else:
                rank.host[x.tensor][x.crossing.gives[other]] += rows[theirs.crossing.takes[number]]


def put(memory, rows, values, stores):
    """Values [R, F] in rows of memory: stored where ``stores`` says so, else added."""
    for row, value, store in zip(rows, values, np.broadcast_to(stores, len(rows)), strict=True):
        memory[row] = value if store else memory[row] + value


class Chunk:
    """A chunk's registers, ``registers``, and what runs on them."""

    def __init__(self, at, i, number):
        self.at, self.i, self.number, self.topology, self.registers = at, i, number, at.p.view, {}
        self.chunk = self.topology.chunk(number)
        self.first, self.end = self.topology.chunk_start[number : number + 2]
        self.rows = np.arange(self.first, self.end) if self.chunk.active is None else self.chunk.active
        self.index, self.own_rows = self.rows - self.first, self.rows - self.topology.partition_start[i]
        self.leaves, self.outs, self.sent = [], [], {}
        self.all_rows = {}  # of the chunk, on their way between the host and the disk

    # what comes, what goes

    def array(self, src):
        if isinstance(src.rows, SlotsOfSources):
            return src.rows.array(self.i, self.at.batch)
        if src.where == "host" and not isinstance(src.rows, SparsePart):
            return self.at.host[src.tensor][self.rows] if self.kept(src.kept) else self.all_rows[src.tensor][self.index]
        return self.index if src.tensor == "row_in_chunk" else getattr(self.chunk, src.tensor)

    def bring(self, x):
        if isinstance(x.dst.rows, PartOfChunk):
            self.part(x.dst.tensor, x.dst.rows.start)[...] = self.array(x.src)
        else:
            self.registers[x.dst.tensor] = self.at.stage(self.i, x.dst.tensor, self.array(x.src))

    def part(self, name, start):
        own = self.number - self.i * self.topology.chunks
        return self.at.memory(self.i, name)[start[self.i][own] : start[self.i][own + 1]]

    def deliver(self, into):
        sent = self.sent.pop(into.tensor)
        if self.kept(into.kept):
            put(self.at.host[into.tensor], self.rows, sent, into.access.among(self.rows))
        else:
            self.all_rows[into.tensor] = undefined((self.end - self.first, sent.shape[1]))
            put(self.all_rows[into.tensor], self.index, sent, True)

    # the disk

    def kept(self, kept):
        """Whether the chunk's rows of a tensor are in memory."""
        return kept is None or kept.has(self.i, self.first)

    def recall(self, there):
        if self.kept(there.kept):
            return
        if not isinstance(there.rows, Summed):
            rows = self.all_rows[there.tensor] = self.at.host[there.tensor][self.first : self.end]
            self.at.moved["recalled"] += rows.size / 2  # the artifact has numbers of half the bytes
            return
        columns, number = self.at.buffers[self.i][there.tensor].shape[-1], self.number - self.i * self.topology.chunks
        self.all_rows[there.tensor] = rows = np.zeros((self.end - self.first, columns))
        for given in there.rows.given:
            for piece in given.pieces(self.i, number, self.first, self.end, columns * 8):
                found = self.at.recalled(piece.begin, piece.rows, columns)
                put(rows, piece.row - self.first, found if piece.take is None else found[piece.take], piece.stores)

    def spill(self, there):
        if self.kept(there.kept):
            return
        rows, chunk = self.all_rows[there.tensor], self.number - self.i * self.topology.chunks
        laid = np.arange(self.end) if there.rows.laid is None else there.rows.laid
        if there.rows.own is not None:
            own = laid[(laid >= self.first) & (laid < self.end)] - self.first
            self.at.spilled(there.rows.own + (laid < self.first).sum() * rows.shape[1] * 8, rows[own])
        for region in there.rows.takers:
            buckets = region.buckets[self.i]
            for first, count in zip(buckets.begin[:, chunk], buckets.count[:, chunk], strict=True):
                picked = rows[buckets.rows(slice(first, first + count)) - self.first]
                self.at.spilled(region.begin[self.i] + first * rows.shape[1] * 8, picked)

    # registers

    def call(self, x):
        """A kernel, which is a method."""
        takes = [None if name is None else self.registers[name] for name in x.takes]
        at = {} if x.at is None else {"at": x.at}
        found = getattr(self, x.kernel)(*takes, **at, **x.settings)
        found = () if found is None else found if isinstance(found, list) else [found]
        self.registers |= {name: rows for name, rows in zip(x.gives, found, strict=True) if name is not None}
        for name in x.drops:
            del self.registers[name]

    def view(self, at, last=False):
        if isinstance(at.rows, PartOfChunk):
            return self.part(at.tensor, at.rows.start)
        if at.where == "chunk":
            pieces = self.at.pieces[self.i][at.tensor]
            return pieces.pop(self.number) if last else pieces[self.number]
        rows = self.at.memory(self.i, at.tensor)
        if at.rows is FRONT:
            return rows[: len(self.rows)]
        return rows[self.own_rows[0] - self.index[0] :][: self.end - self.first]

    def pick(self, rows, index, buffer):
        return self.at.stage(self.i, buffer, rows[index])

    def new(self, columns, zero=False):
        return np.full((len(self.rows), columns), 0 if zero else np.nan)

    def copy(self, *arrays):
        return [rows.copy() for rows in arrays]

    def add(self, *parts):
        return sum(parts)

    def write(self, out, index=None, *, at, holds):
        values = np.array(out.detach().numpy() if isinstance(out, torch.Tensor) else out)
        stores = at.access.among(self.rows)
        if at.where == "host":
            self.sent[at.tensor] = values
        elif at.where == "device":
            put(self.at.memory(self.i, at.tensor), self.own_rows, values, stores)
        else:
            pieces = self.at.pieces[self.i][at.tensor]
            pieces[self.number] = values if stores is True else pieces[self.number] + values
        return out

    # computing

    def gather(self, slots, at):
        return self.at.memory(self.i, at.tensor)[slots]

    def matrix(self, start, source, slots, weight, mean):
        """[D, S] of a sum over in-edges."""
        found = np.zeros((len(self.rows), len(slots)))
        for d, (lo, hi) in enumerate(pairwise(start)):
            for e in range(lo, hi):
                found[d, source[e]] += 1 if weight is None else weight[e]
        return found / np.maximum(np.diff(start), 1)[:, None] if mean else found

    def sum(self, start, source, slots, weight, a, at, mean):
        a[...] = self.matrix(start, source, slots, weight, mean) @ self.at.memory(self.i, at.tensor)[slots]
        return a

    def sort_edges(self, *arrays, mean):
        """In the order of their sources: nobody here looks at it."""

    def transpose_sum(self, start, source, slots, weight, grad, *order, at, mean):
        self.add_to_cache(slots, self.matrix(start, source, slots, weight, mean).T @ grad, at)

    def add_to_cache(self, slots, rows_SF, at):
        self.at.memory(self.i, at.tensor)[slots] += rows_SF

    def run_aggregate(self, layer, z, *s):
        counts = np.diff(self.registers["indptr"])
        ends = torch.as_tensor(np.repeat(np.arange(len(counts)), counts))
        source = torch.as_tensor(self.registers["local_source"]).long()
        return self.at.model.aggregate(layer, source, ends, len(counts), z, *s)

    def aggregate(self, *rows, layer, states, graph):
        assert not states
        with torch.set_grad_enabled(graph):
            return self.run_aggregate(layer, *map(torch.as_tensor, rows))

    def transpose_aggregate(self, grad, at, layer, z, s):
        slots = self.registers["slot_of_source"]
        rows = torch.zeros((len(slots), z), dtype=torch.float64, requires_grad=True)
        a = self.run_aggregate(layer, rows, *(torch.zeros((len(self.rows), n), dtype=torch.float64) for n in s))
        self.add_to_cache(slots, torch.autograd.grad(a, rows, torch.as_tensor(grad))[0].numpy(), at)

    def combine(self, *rows, layer):
        with torch.no_grad():
            return self.at.model.combine(layer, *map(torch.as_tensor, rows)).numpy()

    def uncombine(self, grad, layer, s, wanted):
        grad, widths = torch.as_tensor(grad), (grad.shape[1], *s)
        parts = [torch.zeros((len(grad), n), dtype=torch.float64, requires_grad=True) for n in widths]
        found = torch.autograd.grad(self.at.model.combine(layer, *parts), parts, grad)
        return [part.numpy() if is_wanted else None for part, is_wanted in zip(found, wanted, strict=True)]

    def enter(self, *arrays):  # the same memory: what is written over it shows
        self.leaves = [torch.as_tensor(rows).requires_grad_() for rows in arrays]
        return self.leaves

    def stage(self, *rows, stage, s, keeps_input, gradients_only):
        self.outs = self.at.model.stage(stage, *map(torch.as_tensor, rows))
        return [out.detach().numpy() for out in self.outs]

    def loss(self, *rows):
        loss, gradient = self.at.model.loss(*rows)
        self.at.loss += loss
        return gradient

    def save(self, stage):
        self.at.graphs[self.i][stage, self.number] = self.leaves, self.outs

    def resume(self, stage):
        self.leaves, self.outs = self.at.graphs[self.i].pop((stage, self.number))

    def differentiate(self, *gradients):
        pairs = [(out, grad) for out, grad in zip(self.outs, gradients, strict=True) if grad is not None]
        pairs = [(out, torch.as_tensor(grad)) for out, grad in pairs if out.requires_grad]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
        return [np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy() for leaf in self.leaves]
