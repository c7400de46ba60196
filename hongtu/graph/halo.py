"""The halo of a rank's rows: those that other ranks own and send it, and the rows that it sends them in turn.

Legend: R rows of the rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Halo:
    """What ranks fetch of one another.

    Attributes:
        first: the layer from which on what a layer exchanges is fetched; layers before it are computed again. Layers
            that exchange nothing do not count.
        fields: bool [R] each, the rows within 0, 1, ... ``first - 1`` in-edges of an own one; what comes after so many
            layers is computed of those of ``hops``.
        takes: of every rank, int64, the rows here that it owns; none of this rank.
        gives: of every rank, int64, the own rows that it takes, in its order.
    """

    first: int
    fields: tuple[np.ndarray, ...]
    takes: tuple[np.ndarray, ...]
    gives: tuple[np.ndarray, ...]

    def hops(self, layers: int) -> int | None:
        """Over how many in-edges own rows depend on what comes after so many layers; None: any.

        >>> [Halo(2, (), (), ()).hops(layers) for layers in range(4)]  # layer 2 reads what other ranks computed
        [None, 1, 0, 0]
        """
        return max(self.first - layers, 0) if layers or not self.first else None

    @property
    def rows(self) -> int:
        """Those that it takes."""
        return sum(map(len, self.takes))

    @property
    def crossing(self) -> int:
        """Rows that are on their way at a time, to it and from it."""
        return self.rows + sum(map(len, self.gives))
