"""What a Trainer asks before it trains on several ranks: that it can, and that all of them were given the same."""

from __future__ import annotations

from typing import Any

from torch import nn

import hongtu
from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.model.checks import is_random
from hongtu.model.edge_loss import LinkLoss
from hongtu.model.network import Network
from hongtu.nn.whole_graph import WholeGraphNorm
from hongtu.ranks.share import share_of
from hongtu.ranks.together import Together

ALONE = "start one process, without torchrun"
DEPENDENCIES = ("cache", "comm")


def check_ranked(
    artifact: Artifact, network: Network, loss: Any, ranks: Together, dependencies: str, on_oom: str
) -> None:
    """Refuse what is exact in one process only.

    Args:
        dependencies, on_oom: as for a Trainer.

    Raises:
        InputError: naming it.
    """
    if dependencies not in DEPENDENCIES:
        raise InputError(f"dependencies {dependencies!r}: expected {' or '.join(map(repr, DEPENDENCIES))}")
    if ranks.size == 1:
        return
    if dependencies != "cache" and on_oom == "replan":
        raise InputError(
            f"on_oom 'replan' runs passes of one rank again, and with dependencies {dependencies!r} the others would "
            "wait for them; use on_oom 'raise', or dependencies 'cache'"
        )
    for norm, index in zip(network.layers, network.layer_index, strict=True):
        if isinstance(norm, WholeGraphNorm):
            raise InputError(
                f"{network.title(index)}: takes statistics over the whole graph, which {ranks.size} ranks do not share "
                f"yet; use torch.nn.LayerNorm, or {ALONE}"
            )
    if isinstance(loss, LinkLoss):
        raise InputError(f"loss: a LinkLoss needs the output of all vertices in one process; {ALONE}")
    if artifact.learns_features:
        raise InputError(f"{artifact.path}: its features are learned embeddings, which ranks do not share yet; {ALONE}")
    for index, module in enumerate(network.modules):
        drawn = [part for part in module.modules() if type(part).__module__.startswith("torch.") and is_random(part)]
        if drawn:
            raise InputError(
                f"{network.title(index)}: {type(drawn[0]).__name__} of torch draws by chunk, and a vertex is in chunks "
                "of several ranks; use hongtu.nn.Dropout, which draws by vertex"
            )
    network.must_not_draw = True


def share_of_rank(artifact: Artifact, network: Network, ranks: Together, dependencies: str) -> Artifact:
    """What this rank holds of the artifact to train the network.

    Args:
        dependencies: one of ``DEPENDENCIES``.

    Raises:
        InputError: when there are more ranks than partitions.
    """
    layers = sum(not isinstance(layer, WholeGraphNorm) for layer in network.layers)
    return share_of(artifact, ranks.rank, ranks.size, layers, layers if dependencies == "cache" else 1)


def described(model: nn.Module, optimizer: Any, more: dict[str, Any]) -> dict[str, Any]:
    """What must be the same on every rank, by name."""
    settings = [{name: x for name, x in group.items() if name != "params"} for group in optimizer.param_groups]
    return {
        "hongtu": hongtu.__version__,
        **more,
        "optimizer's settings": settings,
        "trained parameters": [name for name, parameter in model.named_parameters() if parameter.requires_grad],
    }
