"""Products in blocks give what torch's own give, and what they do not take goes to torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from hongtu.device.layer_memory import WorkspaceTracker
from hongtu.kernels import dense
from hongtu.kernels.dense import each_block
from hongtu.threads import shared_cores

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN, which multiplies the blocks"
)
SIZES = [
    (512, 64, 48),
    (513, 40, 33),
    (1500, 33, 96),
    (1024, 128, 32),
    (600, 4, 80),
    (100, 64, 64),
    (1100, 300, 48),
    (700, 48, 300),
    (512, 96, 96),
    (513, 260, 41),
    (1500, 66, 256),
    (2049, 128, 80),
]


def matrix(rows: int, columns: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(found: torch.Tensor, exact: torch.Tensor) -> bool:
    return torch.allclose(found.double(), exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


def product(name: str, *args: torch.Tensor, **options: float) -> torch.Tensor:
    """By the function in ``dense``, or by torch's operation where that is as good."""
    found = getattr(dense, name)(*args, **options)
    return getattr(dense.aten, name).default(*args, **options) if found is NotImplemented else found


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
def test_products_in_blocks_are_torchs(rows: int, inner: int, columns: int) -> None:
    a, w, bias = matrix(rows, inner, 0), matrix(columns, inner, 1), matrix(1, columns, 2)[0]
    grad, start = matrix(rows, columns, 3), matrix(rows, columns, 4)
    exact = a.double() @ w.double().t()
    assert close(product("mm", a, w.t()), exact)
    assert close(product("addmm", bias, a, w.t()), bias.double() + exact)
    assert close(product("addmm", start, a, w.t()), start.double() + exact)
    assert close(product("addmm", bias, a, w.t(), alpha=2), bias.double() + 2 * exact)
    assert close(product("mm", grad, w), grad.double() @ w.double())
    assert close(product("mm", grad.t(), a), grad.double().t() @ a.double())
    more = start.clone()
    assert product("addmm_", more, a, w.t()) is more and close(more, start.double() + exact)


def test_other_dtypes_and_strides_are_left_to_torch() -> None:
    a, b = matrix(600, 64, 0, torch.float64), matrix(64, 64, 1, torch.float64)
    assert dense.mm(a, b) is NotImplemented
    every_other, small = matrix(1200, 64, 0)[::2], matrix(64, 64, 1)
    assert dense.mm(every_other, small) is NotImplemented
    assert dense.mm(every_other.t(), every_other) is NotImplemented


def test_what_is_left_to_torch_does_not_count_as_substituted() -> None:
    tracker = WorkspaceTracker(lambda live: None, {dense.aten.mm.default: dense.mm})
    for rows, replaced in ((100, 0), (600, 1)):
        with tracker:
            torch.mm(matrix(rows, 96, 0), matrix(96, 96, 1))
        assert tracker.substituted == replaced


def test_layers_and_their_gradients_go_through_them() -> None:
    """Below autograd, so forward and backward of any module."""
    called: list[str] = []
    known = {dense.aten.mm.default: dense.mm, dense.aten.addmm.default: dense.addmm}

    def noted(name: str, function):  # type: ignore[no-untyped-def]
        return lambda *args, **kwargs: (called.append(name), function(*args, **kwargs))[1]

    substitutes = {operation: noted(str(operation), function) for operation, function in known.items()}
    layer, x = torch.nn.Linear(64, 40), matrix(700, 64, 0).requires_grad_()
    layer(x).square().sum().backward()
    wanted = [x.grad, layer.weight.grad, layer.bias.grad]
    x.grad = layer.weight.grad = layer.bias.grad = None
    with WorkspaceTracker(lambda live: None, substitutes):
        layer(x).square().sum().backward()
    assert sorted(called) == ["aten.addmm.default", "aten.mm.default", "aten.mm.default"]
    for found, exact in zip([x.grad, layer.weight.grad, layer.bias.grad], wanted, strict=True):
        assert close(found, exact.double())


@pytest.mark.parametrize(
    ("capability", "cpu", "family", "used"),
    [
        ("AVX512", "AuthenticAMD", 26, True),
        ("AVX512", "AuthenticAMD", 25, False),  # Zen 4, whose units are of 256 bits
        ("AVX2", "AuthenticAMD", 26, False),
        ("AVX512", "GenuineIntel", 26, False),
    ],
)
def test_they_are_used_where_mkl_does_not_use_the_processor(capability, cpu, family, used, monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(dense, "_cpuinfo", lambda: f"vendor_id\t: {cpu}\ncpu family\t: {family}\n")
    assert bool(dense.substitutes.__wrapped__()) == used


def test_without_onednns_operation_torchs_are_used(monkeypatch) -> None:
    def gone(*_):
        raise AttributeError("no such operation")

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(dense, "_cpuinfo", lambda: "vendor_id\t: AuthenticAMD\ncpu family\t: 26\n")
    monkeypatch.setattr(dense, "onednn_linear", gone)
    assert dense.substitutes.__wrapped__() == {}


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Others use the cores, and torch has three threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(shared_cores, "crowded", True)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
def test_a_crowded_machine_gives_the_same_bits(
    rows: int, inner: int, columns: int, crowded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, w, bias, grad = (
        matrix(rows, inner, 0),
        matrix(columns, inner, 1),
        matrix(1, columns, 2)[0],
        matrix(rows, columns, 3),
    )

    def found() -> list[torch.Tensor]:
        more = grad.clone()
        product("addmm_", more, a, w.t())
        return [product("mm", a, w.t()), product("addmm", bias, a, w.t()), product("mm", grad.t(), a), more]

    apart = found()
    monkeypatch.setattr(shared_cores, "crowded", False)
    for one, other in zip(apart, found(), strict=True):
        assert torch.equal(one, other)


def test_on_a_crowded_machine_threads_take_blocks_alone(crowded: None) -> None:
    ready, seen = threading.Barrier(3, timeout=60), []

    def work(k: int) -> None:
        if k < 3:
            ready.wait()  # until three threads have taken one
        alone = torch.get_num_threads() == 1 and not torch.is_grad_enabled() and torch.is_inference_mode_enabled()
        seen.append((k, alone))

    with torch.inference_mode():
        each_block(work, 20)
    assert sorted(seen) == [(k, True) for k in range(20)]
    assert torch.get_num_threads() == 3


def test_threads_that_fill_the_processors_have_one_each(crowded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 6, 7})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, to: moved.append((threading.get_ident(), set(to))))
    each_block(lambda k: None, 20)
    assert moved[-1] == (threading.get_ident(), {4, 6, 7})
    assert sorted(map(sorted, (to for _, to in moved[:-1]))) == [[4], [6], [7]]
    moved.clear()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    each_block(lambda k: None, 20)
    assert all(to == set(range(64)) for _, to in moved) and len(moved) == 4


def test_an_error_ends_all_turns(crowded: None) -> None:
    seen = []

    def work(k: int) -> None:
        seen.append(k)
        if k == 4:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        each_block(work, 10**6)
    assert torch.get_num_threads() == 3 and len(seen) < 10**6
