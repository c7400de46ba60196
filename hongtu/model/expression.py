"""What a traced forward does with rows between modules: functions and methods, put together where one takes another's.

A forward may use parameters and buffers of the model itself there; whoever computes it keeps them.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.model.checks import drops
from hongtu.model.random_state import kept_random_state
from hongtu.model.wiring import RowFunction, TakenApart
from hongtu.nn import Dropout

BLOCK = 1 << 16  # vertices looked at a time
EXACT = 1 << 24  # whole numbers below are themselves in float32
Own = tuple[str, Tensor]  # a tensor of the model itself, behind its name there


class _Keeping(RowFunction):
    """A function of rows and of tensors that are no rows: parameters are trained, others stay.

    Attributes:
        pyg_names: what its parameters are called in the model.
    """

    def __init__(self, activation: Callable[..., Any], own: Sequence[Own]) -> None:
        super().__init__(activation)
        self._own, self._places = [f"own_{k}" for k in range(len(own))], [place for place, _ in own]
        self.pyg_names = {}
        for name, (place, tensor) in zip(self._own, own, strict=True):
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
                self.pyg_names[name] = place
            else:
                self.register_buffer(name, tensor, persistent=False)

    def forward(self, *rows: Any) -> Any:
        try:
            return self.activation(*rows, *(getattr(self, name) for name in self._own))
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # memory that ran out
                raise
            raise InputError(
                f"from_pyg: rows, and {', '.join(self._places)} of the model: {error}; what has a row for each vertex "
                "belongs to its features, and features='embedding:D' are learned"
            ) from error


class Kinds(nn.Embedding):
    """An Embedding of whole numbers that features hold as floats.

    Attributes:
        wrong: where it was called with no kind that it has, bool of the shape of each call; None: nobody asks.
    """

    wrong: list[Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:
        """[R, ..., columns]. Others than kinds come where a model is judged on rows that no graph has."""
        if self.wrong is not None:
            self.wrong.append((input < 0) | (input >= min(self.num_embeddings, EXACT)) | (input != input.long()))
        return super().forward(input.detach().nan_to_num(0, 0, 0).long().remainder(self.num_embeddings))


class LookUp(nn.Module):
    """An Embedding of what the features say, or a module with some inside: kinds as numbers, which ``check_kinds`` has
    seen to be such.

    Args:
        embedding: the model's, changed in place.
        names: what its parameters and buffers are called in the model.
        rows: what it takes of features, or None.
    """

    def __init__(self, embedding: nn.Module, names: Mapping[str, str], rows: nn.Module | None) -> None:
        super().__init__()
        self.embedding, self.rows = embedding, rows
        self.pyg_names = {f"embedding.{own}": name for own, name in names.items()}
        for part in embeddings(embedding):
            part.__class__ = Kinds

    def forward(self, x: Tensor) -> Tensor:
        """[R, ..., columns], of features [R, F]."""
        return self.embedding(x if self.rows is None else self.rows(x))

    def check(self, x: Tensor) -> tuple[int, Kinds] | None:
        """The first row of features with a kind that an Embedding has not, and that; None where there is none."""
        first, kinds = next(self.parameters()), [part for part in self.modules() if isinstance(part, Kinds)]
        modes = {module: module.training for module in self.modules()}
        for part in kinds:
            part.wrong = []
        try:
            with torch.no_grad(), kept_random_state():
                self.eval()(x.to(first.device, first.dtype))
            for part in kinds:
                for wrong in part.wrong or ():
                    if bool(wrong.any()):
                        return int(wrong.reshape(len(x), -1).any(dim=1).nonzero()[0]), part
        finally:
            for part in kinds:
                part.wrong = None
            for module, mode in modes.items():
                module.training = mode
        return None


def embeddings(module: nn.Module) -> list[nn.Module]:
    """The Embeddings of a module, itself or inside."""
    return [part for part in module.modules() if type(part) in (nn.Embedding, Kinds)]


def check_kinds(modules: Iterable[nn.Module], sources: Sequence[tuple[int, ...]], artifact: Artifact) -> None:
    """Refuse features in which an Embedding of the model finds no kind.

    Args:
        sources: what each module takes, -1 for the features.

    Raises:
        InputError: naming the vertex.
    """
    for index, module in enumerate(modules):
        if not isinstance(module, LookUp):
            continue
        title = f"layers[{index}] ({next(iter(module.pyg_names.values()))})"
        if sources[index] != (-1,) or artifact.features is None:
            if not isinstance(module.embedding, Kinds):  # its Embeddings may take what it makes itself
                for part in embeddings(module):
                    part.__class__ = nn.Embedding
                continue
            raise InputError(f"{title}: an Embedding looks up what dense features say; it takes them first in the list")
        for first in range(0, len(artifact.features), BLOCK):
            bad = module.check(torch.from_numpy(np.array(artifact.features[first : first + BLOCK])))
            if bad is not None and bad[1].num_embeddings > EXACT:
                raise InputError(
                    f"{title}: features of vertex {artifact.original_id[first + bad[0]]} are no whole number from 0 to "
                    f"{EXACT - 1}, beyond which the float32 of an artifact rounds; number the kinds that there are, as "
                    "torch.unique(x, return_inverse=True)[1], or look up two columns, x // 4096 and x % 4096"
                )
            if bad is not None:
                raise InputError(
                    f"{title}: features of vertex {artifact.original_id[first + bad[0]]} are no whole number from 0 to "
                    f"{bad[1].num_embeddings - 1}, where the Embedding looks; make it of num_embeddings="
                    "int(x.max()) + 1, and give it x as integers, not normalised"
                )


def parts(node: fx.Node, module: nn.Module, place: str, title: str) -> dict[fx.Node, tuple[list[fx.Node], nn.Module]]:
    """What a forward goes on with of a call that gives several things, or that is made with plain values beside rows:
    the rows that each takes, and the module that gives it. Empty for a call that an entry of a list makes as it is.

    Raises:
        InputError: for several things of a module that draws numbers, which would be others for each.
    """
    ends, taken = _ends(node), list(node.all_input_nodes)
    given: list[Any] = []
    fx.node.map_aggregate((node.args, node.kwargs), given.append)
    if [*ends] == [node] and all(value is None or isinstance(value, fx.Node) for value in given):
        return {}
    if len(ends) > 1 and drops(module):
        raise InputError(
            f"{title}.forward goes on with several of the things that {place} gives, and it drops: they would come of "
            "several calls; have one module make what is needed of them, with torch.cat, say"
        )

    def of(path: tuple[int | str, ...]) -> Callable[..., Any]:
        def call(module: nn.Module, *rows: Any) -> Any:
            at = dict(zip(taken, rows, strict=True))
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), at.__getitem__)
            return functools.reduce(operator.getitem, path, module(*args, **kwargs))

        return call

    return {end: (taken, TakenApart(module, place, of(path))) for end, path in ends.items()}


def _ends(node: fx.Node, path: tuple[int | str, ...] = ()) -> dict[fx.Node, tuple[int | str, ...]]:
    """Where a result that is taken apart by numbers or names is whole, and those on the way there."""
    users = list(node.users)
    if not users or not all(user.target is operator.getitem and isinstance(user.args[1], int | str) for user in users):
        return {node: path}
    return {end: way for user in users for end, way in _ends(user, (*path, user.args[1])).items()}  # type: ignore


def is_expression(node: fx.Node) -> bool:
    """Whether it is a function or a method, and no dropout."""
    return node.op in ("call_function", "call_method") and node.target is not nn.functional.dropout


def expression(
    node: fx.Node, names: Mapping[fx.Node, str], own: Mapping[fx.Node, Own]
) -> tuple[list[fx.Node], list[nn.Module]]:
    """The values that a function takes, directly or by way of others, and the modules that compute it of them.

    Args:
        names: the values that there are.
        own: tensors of the model itself.
    """
    taken: list[fx.Node] = []
    order: list[fx.Node] = []

    def visit(other: fx.Node) -> None:
        for before in () if other in names or other in own else other.all_input_nodes:
            visit(before)
        found = taken if other in names else order
        if other not in found:
            found.append(other)

    visit(node)
    position = {other: k for k, other in enumerate(node.graph.nodes)}
    order.sort(key=position.__getitem__)  # what changes rows in place runs when the forward runs it
    if node.target is nn.functional.dropout:
        bound = inspect.signature(nn.functional.dropout).bind(*node.args, **node.kwargs).arguments
        rest = [] if node.args[0] in names else expression(node.args[0], names, own)[1]  # type: ignore[arg-type]
        return taken, [*rest, Dropout(float(bound.get("p", 0.5)))]
    if order == [node] and node.args == tuple(taken) and not node.kwargs:
        return taken, [RowFunction(_call(node))]

    kept = [step for step in order if step in own]
    order = [step for step in order if step not in kept]

    def apply(*values: Any) -> Any:
        at = dict(zip([*taken, *kept], values, strict=True))
        for step in order:
            args, kwargs = fx.node.map_arg((step.args, step.kwargs), at.__getitem__)
            at[step] = _call(step)(*args, **kwargs)
        return at[node]

    apply.__name__ = "_".join(map(label, order))
    return taken, [_Keeping(apply, [own[step] for step in kept]) if kept else RowFunction(apply)]


def _call(node: fx.Node) -> Callable[..., Any]:
    return node.target if callable(node.target) else _Method(str(node.target))


class _Method:
    """A method of tensors, as a function."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, rows: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(rows, self.__name__)(*args, **kwargs)


def label(node: fx.Node) -> str:
    """What messages call it."""
    return str(node.args[1]) if node.target is getattr else getattr(node.target, "__name__", str(node.target))
