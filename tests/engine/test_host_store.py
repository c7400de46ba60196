"""Host rows by name: what is held, what is lent, how many bytes count, and rows of a CSR tensor."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

from hongtu.device.pool import plain
from hongtu.engine.host_store import HostStore
from hongtu.graph.sparse_rows import SparseRows

V = 6


def test_rows_count_while_they_are_held():
    host = HostStore(V, torch.float64)
    host.create("x", (V, 3), zero=True)
    assert host["x"].shape == (V, 3) and not host["x"].any() and host.names() == {"x"}
    host.create("y", (V, 2), zero=False)
    host.staging(100)
    host.staging(40)
    host.keep_pageable("ids", torch.arange(V))
    host.count_pageable(7)
    assert host.peak_bytes == {"pinned host": (3 + 2) * V * 8 + 100, "pageable host": V * 8 + 7}
    host.free("y")
    host.reset_peak()
    assert host.peak_bytes["pinned host"] == 3 * V * 8 + 40
    host.staging(0)
    host.create("z", (V, 1), zero=False)
    assert host.peak_bytes["pinned host"] == (3 + 1) * V * 8 and host.names() == {"x", "ids", "z"}
    host.free("z")
    host.reset_peak()
    assert host.peak_bytes["pinned host"] == 3 * V * 8 and host.names() == {"x", "ids"}


def test_what_is_not_pinned_stays_where_it_is():
    given = torch.arange(2.0 * V, dtype=torch.float64).reshape(V, 2)
    host = HostStore(V, torch.float64)
    assert host.keep("x", given) is given and host.peak_bytes["pinned host"] == given.nbytes
    host.free("x")
    assert "x" not in host.names()
    single = HostStore(V, torch.float32)
    assert single.keep("x", given).dtype == torch.float32


def test_pinned_rows_are_a_copy():
    given = torch.ones(V, 2, dtype=torch.float64)
    host = HostStore(V, torch.float64, plain)
    held = host.keep("x", given)
    assert held.data_ptr() != given.data_ptr() and torch.equal(held, given)


def test_a_name_is_held_once():
    host = HostStore(V, torch.float32)
    host.create("x", (V, 1), zero=True)
    with pytest.raises(AssertionError, match="x"):
        host.create("x", (V, 1), zero=True)
    with pytest.raises(AssertionError, match="x"):
        host.keep_pageable("x", torch.zeros(1))


def test_some_rows_begin_as_zeros():
    host = HostStore(V, torch.float32)
    host.create("x", (V, 2), zero=np.array([1, 4], dtype=np.int32))
    assert not host["x"][[1, 4]].any() and host["x"][[0, 2, 3, 5]].isnan().all()


def test_sparse_rows_are_of_the_runs_dtype():
    rows = scipy.sparse.random(V, 5, 0.5, "csr", np.float32, 0)
    host = HostStore(V, torch.float64)
    host.keep_sparse(SparseRows(rows.indptr.astype(np.int64), rows.indices, rows.data, 5))
    assert host.sparse.value.dtype == np.float64 and host.peak_bytes["pageable host"] == (V + 1) * 8 + rows.nnz * 12
    for part in (slice(2, 5), np.array([2, 4], dtype=np.int32), np.empty(0, dtype=np.int32)):
        start, column, value = host.sparse.part(part)
        found = scipy.sparse.csr_matrix((value, column, start), shape=(len(start) - 1, 5)).toarray()
        np.testing.assert_array_equal(found, rows.toarray()[part])
