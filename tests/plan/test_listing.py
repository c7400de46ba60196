"""The listing of a program: the example of docs/concepts.md, every kind of instruction, passes and batches by name.

``python -m tests.plan.test_listing`` rewrites the example.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from hongtu.errors import InputError
from hongtu.hardware import CPU, H200
from hongtu.model.named import build_layers
from hongtu.plan.passes.strategy import Strategy
from hongtu.plan.program import listing, moves
from hongtu.plan.program.compile import compile_plan
from hongtu.plan.program.listing import list_program
from hongtu.plan.program.moves import Instruction
from hongtu.train.planning import plan_model
from tests import problems

DOCS = Path(__file__).resolve().parents[2] / "docs" / "concepts.md"
EXAMPLE = re.compile(r"(?<=<!-- listing -->\n```\n).*(?=```\n<!-- /listing -->)", re.DOTALL)


def program_of(model="gcn", memory=None, hardware=CPU, strategy="full", **options):
    artifact = problems.prepare(problems.awkward(), 2, 4, partitioner="range", order="input")
    layers = build_layers(model, artifact.feature_width, 16, artifact.num_classes, 2)
    plan = plan_model(artifact, layers, device_memory=memory, hardware=hardware, strategy=strategy, **options)
    return compile_plan(plan)


def example():
    return list_program(program_of(memory=13_000, strategy=Strategy(resident=False)), "fused 1")


def test_example_in_the_docs():
    found = EXAMPLE.search(DOCS.read_text())
    assert found is not None
    assert found[0] == example(), "the example has changed: `python -m tests.plan.test_listing` rewrites it"


@pytest.mark.parametrize("hardware", [CPU, H200], ids=lambda hardware: hardware.name)
@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_every_instruction_is_listed(model, hardware):
    program = program_of(model, hardware=hardware)
    text = list_program(program)
    for p in (*program.setup, *program.train, *program.evaluate):
        assert f"pass '{p.name}'" in text
        own = list_program(program, p.name)
        assert own in text
        verbs = [line.split()[0] for line in own.splitlines()[1:]]
        for x in p.every if len(p.order) else (*p.before, *p.after, *p.frees):
            assert x.verb in verbs
    assert text == list_program(program_of(model, hardware=hardware))


def test_every_kind_has_words():
    every = [x for x in vars(moves).values() if isinstance(x, type) and issubclass(x, Instruction)]
    kinds, known = [x for x in every if x is not Instruction], inspect.getsource(listing)
    assert len(kinds) == 12 and all(kind.words or f"moves.{kind.__name__}()" in known for kind in kinds)


def test_refusals():
    program = program_of()
    with pytest.raises(InputError, match=r"there are 'setup', .*'fused 1'"):
        list_program(program, "fusd 1")
    with pytest.raises(InputError, match="--batch 9: the pass has batches 0 to"):
        list_program(program, "fused 1", 9)
    with pytest.raises(InputError, match="--batch 0: the pass has no batches"):
        list_program(program_of(memory=13_000, strategy="paper"), "setup", 0)


if __name__ == "__main__":
    DOCS.write_text(EXAMPLE.sub(lambda _: example(), DOCS.read_text()))
