"""A kind of instruction is known everywhere: run, described, and counted where it moves bytes."""

from __future__ import annotations

import ast
import inspect
from typing import get_args

import pytest

from hongtu.engine.body import Body
from hongtu.engine.executor import Executor
from hongtu.metrics import BELOW, LINKS
from hongtu.plan.program import chunk_body, compile, copies, moves
from hongtu.plan.program.moves import Instruction

KINDS = [x for x in vars(moves).values() if inspect.isclass(x) and issubclass(x, Instruction) and x is not Instruction]


def calls(module):
    """The kernels that a module calls, each with the names of its arguments."""
    found = [x for x in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(x, ast.Call)]
    found = [x for x in found if isinstance(x.func, ast.Name) and x.func.id == "call"]
    return [(x.args[0].value, {keyword.arg for keyword in x.keywords} - {"gives", "arrays", "on"}) for x in found]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (moves.Copy, moves.Call)])
def test_a_kind_is_run(kind):
    assert hasattr(Executor, kind.verb)


@pytest.mark.parametrize("link", get_args(moves.Link))
def test_a_link_of_copies_is_run_and_counted(link):
    assert link in LINKS and moves.ON[link] in get_args(moves.StreamName)
    assert hasattr(Executor, link)


@pytest.mark.parametrize("memory", BELOW)
def test_copies_below_the_host_are_run_by_where_they_go(memory):
    there, window = moves.Ref(tensor="x", where=memory), moves.Ref(tensor="x", where="window")
    for dst, src in ((window, there), (there, window)):
        copy = moves.Copy(link=memory, dst=dst, src=src)
        assert hasattr(Executor, copy.verb) and copy.there is there and copy.on == "disk"


def test_a_kernel_is_run_with_the_arguments_that_it_is_given():
    """What the planner calls has a method with these names."""
    assert len(calls(chunk_body)) > 20
    for kernel, named in calls(chunk_body):
        assert named <= {*inspect.signature(getattr(Body, kernel)).parameters}, kernel
    around = [*calls(compile), *calls(copies)]
    assert len(around) == 6 and all(hasattr(Executor, kernel) for kernel, _ in around)
