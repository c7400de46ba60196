"""What the way of a traced forward depends on, which a run has to be like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact


@dataclass
class Asked:
    """What a forward's way depends on.

    Attributes:
        columns: the numbers of columns of x that it goes this way for; None: any.
        edge_columns: those of edge_attr, None for one without; None: any.
        dtype: of x; None: any.
        device: the kind of device, as "cpu"; None: any.
    """

    columns: set[int] | None = None
    edge_columns: set[int | None] | None = None
    dtype: torch.dtype | None = None
    device: str | None = None


def check_asked(modules: Iterable[nn.Module], artifact: Artifact, dtype: torch.dtype, device: str) -> None:
    """Refuse a run in which the forward of a traced model would go another way than its trace did.

    Raises:
        InputError: with what differs.
    """
    for module in modules:
        asked = getattr(module, "asked", None)
        if asked is None:
            continue
        features, form = artifact.stored.edge_features, artifact.edge_forms.get("edge_features", "2f")
        of_edges = None if features is None or form[0] == "1" else features.shape[1]
        of_model = ", or give from_pyg a model that is so, as model.double()"
        for what, traced, given, remedy in (
            ("the number of columns of x", asked.columns, artifact.feature_width, ""),
            ("the number of columns of edge_attr", None if features is None else asked.edge_columns, of_edges, ""),
            ("the dtype of x", asked.dtype and {asked.dtype}, dtype, of_model),
            ("the device of x", asked.device and {asked.device}, device, of_model),
        ):
            if traced is not None and given not in traced:
                shown = ", ".join(sorted(map(str, traced)))
                raise InputError(
                    f"the model's forward asks for {what}, which was {shown} when from_pyg traced it, and is {given} "
                    f"in this run; leave the question out{remedy}"
                )
