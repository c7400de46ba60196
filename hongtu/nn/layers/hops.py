"""Several hops without parameters: APPNP, as torch_geometric's, and SIGN, as its transform."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hongtu.errors import names_known
from hongtu.nn.block import Block
from hongtu.nn.dropout import Dropout
from hongtu.nn.layer import Layer, Skip
from hongtu.nn.layers.normalized import NormalizedSum


class APPNP(NormalizedSum):
    """h_k = (1 - alpha) B h_(k-1) + alpha h_0 for k = 1 ... K, with B = D^-1/2 (A + I) D^-1/2; K layers for the engine.

    No parameters: put it behind the layers whose predictions it spreads.

    Args:
        K: steps, at least 1.
        alpha: share of h_0, 0 to 1.
        dropout: of edges, self-loops included; as in torch_geometric what a step drops stays dropped in those
            behind it, so that step k draws the masks of k steps. The aggregate is then recomputed in backward.
        add_self_loops: add I.
        normalize: without it B = A.
    """

    def __init__(
        self, K: int, alpha: float, dropout: float = 0.0, *, add_self_loops: bool = True, normalize: bool = True
    ) -> None:
        if K < 1 or not 0 <= alpha <= 1:
            raise ValueError(f"APPNP(K={K}, alpha={alpha}): expected at least 1 step and alpha from 0 to 1")
        add_self_loops = add_self_loops and normalize  # as torch_geometric
        super().__init__(add_self_loops, normalize)
        self.K, self.alpha = K, alpha
        self.hops = nn.ModuleList(_Step(self, dropout) for _ in range(K))

    def expand(self) -> list[Layer]:
        return list(self.hops)


class _Step(NormalizedSum):
    """h_(k-1), h_0 -> h_k: the rows of h_0 stay where they are for all steps. Its owner is no submodule, it owns it."""

    reads_input = True

    def __init__(self, owner: APPNP, dropout: float) -> None:
        super().__init__(owner.add_self_loops, owner.normalize)
        self._owner = (owner,)
        self.edge_dropout = Dropout(dropout)

    @property
    def reduce(self) -> str | None:  # type: ignore[override]
        return None if any(dropout.p > 0 for dropout in self._dropouts) else "sum"

    @property
    def _dropouts(self) -> list[Dropout]:
        """Of the steps up to this one."""
        hops = list(self._owner[0].hops)
        return [hop.edge_dropout for hop in hops[: hops.index(self) + 1]]

    @property
    def combines(self) -> bool:
        return self.reduce is not None

    @property
    def factors(self) -> tuple[bool, bool, str] | None:  # type: ignore[override]
        return super().factors if self.reduce is not None else None  # else it takes the self-loops' own weights

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        return self.spread(h)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        if self.reduce is not None:
            return super().aggregate(block, z, s)
        weight_E1 = z.new_ones(block.num_edges, 1) if block.edge_weight is None else block.edge_weight.unsqueeze(1)
        if self.add_self_loops and block.has_loops:
            weight_E1 = weight_E1.masked_fill(block.loop_mask.unsqueeze(1), 0)
        loop_D1 = self.loop_R1(block.rows) if self.add_self_loops else None
        for dropout in self._dropouts:  # in this order: the number of a call decides its mask
            weight_E1 = dropout(weight_E1, block.edge_ids)
            if loop_D1 is not None:
                loop_D1 = dropout(loop_D1, block.num_graph_edges + block.rows.ids)
        a = block.attend(z, weight_E1, z.shape[1])
        return a if loop_D1 is None else a + loop_D1 * s

    def update(self, a: Tensor, s: Skip, start: Tensor) -> Tensor:  # type: ignore[override]
        if self.reduce is None and self.normalize:
            a = self.scale_R1() * a
        alpha = self._owner[0].alpha
        return (1 - alpha) * a + alpha * start


@names_known
class SIGN(NormalizedSum):
    """h' = [h, B h, ..., B^K h] with B = D^-1/2 A D^-1/2; K layers for the engine, without parameters.

    As the first layer, over constant features, all of it is computed once for the whole run
    (``cache_input_aggregate``): what follows is then a model of rows. torch_geometric's transform gives the same as
    ``data.x``, ``data.x1``, ...

    Args:
        K: hops, at least 1.
        add_self_loops: add I to A, which torch_geometric's transform does not.
    """

    def __init__(self, K: int, add_self_loops: bool = False) -> None:
        if K < 1:
            raise ValueError(f"SIGN(K={K}): expected at least 1 hop")
        super().__init__(add_self_loops)
        self.K = K
        self.hops = nn.ModuleList(_Hop(k, add_self_loops) for k in range(K))

    def expand(self) -> list[Layer]:
        return list(self.hops)


class _Hop(NormalizedSum):
    """[h, ..., B^k h] -> [h, ..., B^(k+1) h]."""

    def __init__(self, k: int, add_self_loops: bool) -> None:
        super().__init__(add_self_loops)
        self.k = k

    @property
    def combines(self) -> bool:
        return False

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        return self.spread(h[:, h.shape[1] // (self.k + 1) * self.k :])[0], h

    def update(self, a: Tensor, s: Skip) -> Tensor:
        assert isinstance(s, Tensor)
        own = self.spread(s[:, -a.shape[1] :])[1]
        return torch.cat([s, self.combine(a, own)], dim=1)
