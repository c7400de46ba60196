"""What the tensors of a model are called: one name for those that are the same (the names: ``definition.py``)."""

from __future__ import annotations

from hongtu.plan.passes.definition import FEATURES, OUTPUT, gradient
from hongtu.plan.passes.shapes import NetworkShape


class Names:
    """Vertex tensor names of every stage's outputs, aliases resolved, and the columns of all tensors.

    Attributes:
        z, s: per layer; ``value``: by the number of the module that gives it, -1 for the features; ``states``: those of
            edges, by the number of the module that gives them.
    """

    def __init__(self, shape: NetworkShape, input_gradient: bool) -> None:
        self.width: dict[str, int] = {FEATURES: shape.features, OUTPUT: shape.output}
        self.z: list[str] = []
        self.s: list[tuple[str, ...]] = []
        for index, layer in enumerate(shape.layers):
            copied = layer.norm and input_gradient  # what comes back by way of statistics is added in a pass of its own
            z = FEATURES if index == 0 and layer.z_is_input and not copied else f"z{index}"
            s = tuple(z if columns is None else f"s{index}.{k}" for k, columns in enumerate(layer.s))
            self.z.append(z)
            self.s.append(s)
            self.width[z] = layer.z
            self.width[f"a{index}"] = layer.a
            self.width.update({n: c for n, c in zip(s, layer.s, strict=True) if c is not None})
        self.value: dict[int, str] = {-1: FEATURES}
        self._shape = shape
        for value in shape.values:
            own = (self.z[value.stage], *self.s[value.stage])
            name = f"v{value.stage}.{value.number}" if value.same_as is None else own[value.same_as]
            self.value[value.number] = name
            self.width[name] = value.columns
        given = [(k, state) for k, layer in enumerate(shape.layers) for state in layer.gives]
        self.states = {state.number: f"e{k}.{state.number}" for k, state in given}
        self.width.update({self.states[state.number]: state.columns for _, state in given})
        self.width.update({gradient(name): columns for name, columns in list(self.width.items())})

    def returned(self, stage: int) -> tuple[str, ...]:
        """Distinct vertex tensors that a stage gives: z, s and values."""
        if stage == len(self.z):
            return (OUTPUT,)
        values = (self.value[value.number] for value in self._shape.values if value.stage == stage)
        return tuple(dict.fromkeys((self.z[stage], *self.s[stage], *values)))

    def stage_outputs(self, stage: int) -> tuple[str, ...]:
        """Those that it writes."""
        return tuple(name for name in self.returned(stage) if name != FEATURES)

    def taken(self, stage: int) -> tuple[str, ...]:
        """What a stage takes from earlier ones."""
        return tuple(self.value[number] for number in self._shape.takes[stage]) if self._shape.takes else ()
