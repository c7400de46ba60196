"""What a list of modules is made of: graph layers, row-wise modules between them, and what planning chooses of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hongtu.errors import InputError
from hongtu.graph.paper_edges import PaperEdges
from hongtu.graph.topology import Topology
from hongtu.kernels.torch_private import has_hooks
from hongtu.model.checks import check_module, is_altered, is_random, may_write
from hongtu.model.own_state import Fingerprint
from hongtu.model.wiring import INPUT, RowFunction, TakenApart, resolve, wire, wire_edges
from hongtu.nn.context import RowContext
from hongtu.nn.dropout import Dropout, check_drop_edges
from hongtu.nn.layer import Layer, bind, is_plain
from hongtu.nn.layers.pyg import PyGLayer
from hongtu.nn.whole_graph import WholeGraphNorm, rules_of


class Kind(NamedTuple):
    """Of a graph with types a relation, and one or two vertices of its destinations' type; None: edges are of any."""

    relation: int | None = None
    ids: tuple[int, ...] = (0, 1)

    def vertices(self, count: int) -> Tensor:
        """int64, so many of them in turn."""
        return torch.tensor(self.ids).repeat(count)[:count]


class Structure:
    """Stages and the layers whose aggregates are between them.

    Stage l applies the update of layer l - 1 (none for stage 0), then the row-wise modules listed before layer l,
    then the transform of layer l (none for the last stage). A whole-graph normalisation counts as a layer. Besides what
    comes from the stage before, a stage takes values of earlier stages by name, and gives its own to later ones.

    Args:
        modules: graph layers (:class:`hongtu.nn.Layer`) and row-wise modules such as ``torch.nn.ReLU`` between them.
        context: shared by every Layer and Dropout of the model.
        autocast: what transforms, updates and row-wise modules may compute in, by torch's rules; what they return has
            the run's dtype again. None: that one only.

    Raises:
        InputError: for modules that cannot be exact chunk by chunk.
    """

    def __init__(self, modules: nn.ModuleList, context: RowContext, autocast: torch.dtype | None = None) -> None:
        self.modules, self.context, self.autocast = modules, context, autocast
        self.layers: list[Layer] = []
        self.layer_index: list[int] = []
        self.row_modules: list[list[tuple[int, nn.Module]]] = [[]]
        every = resolve(modules)
        for index, module in enumerate(modules):
            check_module(index, module)
            rules = rules_of(module)
            layer = module if rules is None else WholeGraphNorm(module, rules)
            if isinstance(layer, Layer):
                check_drop_edges(layer, f"layers[{index}] ({type(layer).__name__})")
                for part in layer.expand():
                    self.layers.append(part)
                    self.layer_index.append(index)
                    self.row_modules.append([])
            elif not every[index][0].of_edges:
                self.row_modules[-1].append((index, module))
        if len(self.norms) == len(self.layers):
            raise InputError("layers: no graph layer in the list; use hongtu.nn.GCNConv or another hongtu.nn.Layer")
        self._transform_first = [layer.transform_first for layer in self.layers]
        self._once_per_vertex = [layer.once_per_vertex for layer in self.layers]
        self._topology: Topology | None = None
        self._fingerprint = Fingerprint([modules])
        self._active: tuple[object, ...] = ()  # the choices that its modules have
        self.activate()
        readers = [index for index, layer in zip(self.layer_index, self.layers, strict=True) if layer.reads_input]
        sources = [tuple(number for number, of_edges in taken if not of_edges) for taken in every]
        self.wiring = wire(sources, self.layer_index, readers)
        self._every = every
        self._edges = wire_edges(every, self.layer_index)
        self._check_edges()

    def _check_edges(self) -> None:
        """Refuse what edges cannot have."""
        for number, edges in self._edges.items():
            layer = self.layers[self.layer_index.index(number)]
            if getattr(layer, "drop_edges", None) is not None and (layer.updates_edges or edges.takes):
                raise InputError(f"{self.title(number)}: drops edges that have states; use hongtu.nn.Dropout on these")
            if layer.linear_aggregate and layer.updates_edges:
                raise InputError(
                    f"{self.title(number)}: updates edges, and declares its aggregate (reduce or linear_aggregate), "
                    "which then is all that runs; leave that out, and define aggregate(block, z, s)"
                )
            if layer.linear_aggregate:
                raise InputError(f"{self.title(number)}: is given rows of edges, and reads none; leave them out")
        several = Counter(module for edges in self._edges.values() for module in edges.before)
        self._anew = {number for number, count in several.items() if count > 1}

    def edge_states(self, index: int) -> tuple[int, ...]:
        """The values of edges, by the modules that give them, that the aggregate of layer ``index`` takes."""
        edges = self._edges.get(self.layer_index[index])
        return edges.takes if edges else ()

    def gives_edges(self, index: int) -> tuple[int, ...]:
        """Those that it gives to later layers."""
        edges = self._edges.get(self.layer_index[index])
        return edges.gives if edges else ()

    def reads_edge_features(self, index: int) -> bool:
        """Whether the aggregate of layer ``index`` reads the graph's."""
        edges = self._edges.get(self.layer_index[index])
        return self.layers[index].uses_edge_features if edges is None else edges.features

    def read_graph(self, topology: Topology) -> None:
        """Have layers know the whole graph, here and whenever they are activated."""
        self._topology = topology
        self.activate()

    @property
    def kinds(self) -> list[Kind]:
        """What rows and edges may be, for who looks at some of each."""
        every = [Kind(*kind) for layer in self.layers for kind in getattr(layer, "relations", ())]
        return [*dict.fromkeys(every)] or [Kind()]

    @property
    def norms(self) -> list[WholeGraphNorm]:
        """The whole-graph normalisations among the layers."""
        return [layer for layer in self.layers if isinstance(layer, WholeGraphNorm)]

    def norm(self, index: int) -> WholeGraphNorm:
        """Layer ``index``, which is one of them."""
        layer = self.layers[index]
        assert isinstance(layer, WholeGraphNorm), index
        return layer

    def check_vertices(self, vertices: int) -> None:
        """Refuse a graph with too few vertices for the statistics that training needs.

        Raises:
            InputError: naming the normalisation.
        """
        for index, layer in zip(self.layer_index, self.layers, strict=True):
            try:
                if isinstance(layer, WholeGraphNorm):
                    layer.gathers(vertices)
            except InputError as error:
                raise InputError(f"{self.title(index)}: {error}") from None

    @property
    def transform_first(self) -> tuple[bool, ...]:
        """Per layer, the side that was chosen."""
        return tuple(self._transform_first)

    def set_transform_first(self, wanted: Sequence[bool]) -> None:
        """Choose, per layer, the side of the exchange on which it applies its first linear map, where it can."""
        pairs = zip(wanted, self.layers, strict=True)
        self._transform_first = [first and layer.may_transform_first for first, layer in pairs]
        self.activate()

    @property
    def once_per_vertex(self) -> tuple[bool, ...]:
        """Per layer, whether it computes what depends on one vertex before the exchange."""
        return tuple(self._once_per_vertex)

    def set_once_per_vertex(self, wanted: Sequence[bool]) -> PaperEdges:
        """Choose that per layer; returns the edges over which all of them aggregate then. Where that would be others
        for some than for others, every layer does."""
        dropped = [getattr(layer, "drop_edges", None) is not None for layer in self.layers]
        wanted = [once or drops for once, drops in zip(wanted, dropped, strict=True)]
        edges = [None if once else layer.paper_edges for once, layer in zip(wanted, self.layers, strict=True)]
        pairs = [pair for pair in zip(edges, self.layers, strict=True) if not isinstance(pair[1], WholeGraphNorm)]
        first, *others = {of or PaperEdges() for of, _ in pairs}
        of_several = not all(wanted) and len({layer.ignores_weights for _, layer in pairs}) > 1
        if others or of_several:
            return self.set_once_per_vertex([True] * len(self.layers))
        self._once_per_vertex = [of is None for of in edges]
        self.activate()
        return first

    @property
    def maps_input(self) -> bool:
        """Whether the features meet nothing but dropout and weights that they are multiplied with, in stage 0, so that
        a ``SparseInput`` will do."""
        sources, later = self.wiring.sources, {*self.wiring.gives[0], *chain(*self.wiring.takes)}
        if self.autocast is not None or INPUT in later:
            return False
        sparse, layer = {INPUT}, self.layers[0]
        for number, module in self.row_modules[0]:
            if sparse.isdisjoint(sources[number]):
                continue
            if type(module) is Dropout and not has_hooks(module) and number not in later:
                sparse.add(number)
            elif not is_plain(module):
                return False
        first, *beside = sources[self.layer_index[0]]
        maps = layer.maps_input and not is_altered(layer)
        return sparse.isdisjoint(beside) and (first not in sparse or maps)

    def activate(self) -> None:
        """Make this run's context and choices those of its modules; another run may have used them since."""
        choices = self._transform_first, self._once_per_vertex, self._topology
        if self._fingerprint.is_same() and all(map(is_, choices, self._active)):
            return
        bind(self.modules, self.context)
        self._random = [is_random(module) or is_altered(module) for module in self.modules]
        parts = (*self.modules, *self.layers)
        self._writes = {module: may_write(module) or is_altered(module) for module in parts}
        for layer, first, once in zip(self.layers, self._transform_first, self._once_per_vertex, strict=True):
            layer.transform_first, layer.once_per_vertex = first, once
            if self._topology is not None:
                layer.read_graph(self._topology)
        self._active = choices
        self._fingerprint.see()

    def _begins(self, index: int) -> bool:
        """Whether layer ``index`` is the first of those that the engine runs in place of its module."""
        return index == 0 or self.layer_index[index - 1] != self.layer_index[index]

    def _ends(self, index: int) -> bool:
        """Whether it is the last of them."""
        return index + 1 == len(self.layers) or self.layer_index[index + 1] != self.layer_index[index]

    def title(self, number: int) -> str:
        module = self.modules[number]
        name = f"function {module.extra_repr()}" if isinstance(module, RowFunction) else type(module).__name__
        name = module.extra_repr() if isinstance(module, TakenApart) else name
        name += f" of {type(module.conv).__name__}" if isinstance(module, PyGLayer) else ""
        return f"layers[{number}] ({name})"
