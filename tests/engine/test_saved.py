"""What a chunk's stage leaves for its backward: rows that nobody holds, where they lie, their gradients."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from hongtu.engine.saved import Graph, Settled, edges_of, entered, move_saved, saving


def test_a_graph_gives_the_gradients_of_what_entered():
    x, w = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [5.0]], requires_grad=True)
    entries, (seen, unused) = entered([x, torch.ones(2)])
    graph = Graph(entries=entries)
    outs = [seen @ w, torch.ones(1), (seen**2).sum(), unused * w]
    graph.outs = edges_of(outs)
    assert graph.outs[1] is None
    graph.backward([torch.tensor([[2.0]]), torch.ones(1), None, None])
    assert graph.entries[0].grad.tolist() == [[6, 10]] and w.grad.tolist() == [[2], [4]] and graph.outs == []
    assert entries[1].grad is None and entries[1].gradient().tolist() == [0, 0]
    graph.backward([])  # nothing is left


def test_rows_are_held_only_where_an_operation_saved_them():
    rows = torch.ones(3)
    out = entered([rows])[1][0] + 1
    gone = weakref.ref(rows)
    del rows
    gc.collect()
    assert gone() is None and out.requires_grad


def test_saved_rows_may_be_moved_to_where_they_are_written():
    places, x = [], torch.arange(3.0)
    (entry,), (seen,) = entered([x])
    with saving(places):
        y = seen * 2
        out = (y * y).sum()
    edges = edges_of([out])
    same = y.detach().clone()
    saved = sum(place.is_at(y) for place in places)
    move_saved(places, y, same)
    assert saved == 2 and sum(place.is_at(same) for place in places) == 2
    with torch.no_grad():
        y.zero_()  # the chunk's own memory is filled again
    Graph(outs=edges).backward([torch.tensor(1.0)])
    assert entry.grad.tolist() == [0, 8, 16]


def test_what_was_written_to_since_is_refused():
    places, (_, (seen,)) = [], entered([torch.arange(3.0)])
    with saving(places):
        y = seen * 2
        out = (y * y).sum()
    edges = edges_of([out])
    with torch.no_grad():
        y.add_(1)
    move_saved(places, y, y.detach().clone())  # too late
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Graph(outs=edges).backward([torch.tensor(1.0)])


def test_a_storage_is_copied_once_and_views_of_it_stay_views():
    copied = []

    def keep(storage):
        copied.append(storage)
        return storage.clone() if storage.nbytes() > 8 else None

    settled, x, small = Settled(keep), torch.arange(6.0), torch.zeros(1)
    part, whole = settled.of(x[2:4]), settled.of(x.view(2, 3).T)
    assert part.tolist() == [2, 3] and whole.tolist() == x.view(2, 3).T.tolist() and settled.of(small) is small
    assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() != x.data_ptr() and len(copied) == 2
    assert Settled(None).of(x) is x
