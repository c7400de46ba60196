"""One layer without an engine, on blocks of a graph, and what it is compared with: output and gradients."""

import torch
from torch import Tensor

from hongtu.nn.context import RowContext
from hongtu.nn.layer import bind
from tests.graphs import cut, make_blocks

IN, OUT = 7, 5


def run(layer, graph, h, parts=1, context=None):
    """transform, aggregate and update on the whole graph cut into blocks: [V, F] -> [V, F']."""
    blocks = make_blocks(graph, cut(graph.num_vertices, parts), h.dtype)
    context = bind(layer, context or RowContext())
    given = h
    for part in layer.expand():
        h = _run_part(part, blocks, h, given, context)
    return h


def _run_part(layer, blocks, h, given, context):
    def rowwise(method, *inputs):
        outputs = []
        for block in blocks:
            context.rows, context.calls = block.rows, 0
            outputs.append(method(*(_pick(x, block) for x in inputs)))
        return outputs

    z, s = _join(rowwise(layer.transform, h))
    outputs = []
    for block in blocks:
        context.rows, context.calls = None, 0
        outputs.append(layer.aggregate(block, z[block.sources.long()], _pick(s, block)))
    a = torch.cat(outputs)
    if layer.combines:
        a, s = torch.cat(rowwise(layer.combine, a, s)), None
    return torch.cat(rowwise(layer.update, a, s, *([given] if layer.reads_input else [])))


def _pick(x, block):
    """The destinations' rows of a tensor, of a tuple of tensors, or None."""
    if x is None or isinstance(x, tuple):
        return x and tuple(_pick(part, block) for part in x)
    return x[block.first : block.first + block.num_dst]


def _join(pairs):
    z, s = torch.cat([z for z, _ in pairs]), [s for _, s in pairs]
    if isinstance(s[0], tuple):
        return z, tuple(torch.cat(part) for part in zip(*s, strict=True))
    return z, None if s[0] is None else torch.cat(s)


def features(graph, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(graph.num_vertices, IN, dtype=torch.float64, generator=generator, requires_grad=True)


def gradients(out, module, h):
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(out.shape, dtype=out.dtype, generator=generator)
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    inputs = [h, *named.values()]
    found = torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True, materialize_grads=True)
    return dict(zip(["h", *named], found, strict=True))


def check(ours, theirs, out, expected, h):
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    found, wanted = gradients(out, ours, h), gradients(expected, theirs, h)
    for key, gradient in wanted.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-10, atol=1e-10, msg=lambda m, k=key: f"{k}: {m}")
    assert len(found) == len(wanted)


def keep_mask(ids: Tensor, width: int, key: int, p: float) -> Tensor:
    """bool [R, F]: the elements of rows that a dropout leaves, in plain torch on any device."""
    row_R1 = (_mixed(_mixed(ids.long()) ^ _signed(key))).unsqueeze(1)
    hash_RP = _mixed(row_R1 + torch.arange((width + 1) // 2, device=ids.device) * _signed(0x9E3779B97F4A7C15))
    halves = torch.stack([hash_RP & 0xFFFFFFFF, (hash_RP >> 32) & 0xFFFFFFFF], dim=2)
    return halves.flatten(1)[:, :width] >= round(p * 2**32)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _mixed(x: Tensor) -> Tensor:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ ((x >> shift) & ((1 << 64 - shift) - 1))) * _signed(factor)
    return x ^ ((x >> 31) & ((1 << 33) - 1))
