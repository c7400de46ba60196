"""A kind of instruction is known everywhere: run, described, checked, and counted where it moves bytes."""

from __future__ import annotations

import ast
import inspect
from typing import get_args

import pytest

from hongtu.engine.body import Body
from hongtu.engine.executor import Executor
from hongtu.plan.program import chunk_body, moves, predict, spilling, waiting
from hongtu.plan.program.call import Call
from hongtu.plan.program.instruction import Instruction


def kinds(*modules):
    every = [x for module in modules for x in vars(module).values() if inspect.isclass(x)]
    return [x for x in every if issubclass(x, Instruction) and x not in (Instruction, Call)]


CROSS = (moves.Cross,)
AROUND = (moves.Place, moves.Free, moves.BeginMoments, moves.EndMoments, moves.SumStatistics, moves.LossOverEdges)
WAITS = tuple(kinds(waiting))
MOVE_NOTHING = (*AROUND, *WAITS, moves.Zero, moves.Compute)
MOVE_NOTHING += (moves.Ship, moves.Post)  # what they move is counted elsewhere


@pytest.mark.parametrize("kind", kinds(moves, waiting, spilling))
def test_a_move_is_run_described_and_counted(kind):
    assert hasattr(Executor, kind.verb) and "words" in vars(kind)
    counted = {
        case.cls.attr for case in ast.walk(ast.parse(inspect.getsource(predict))) if isinstance(case, ast.MatchClass)
    }
    assert (kind.__name__ in counted) != issubclass(kind, MOVE_NOTHING), "counted, or moves nothing"


@pytest.mark.parametrize("kind", [kind for kind in kinds(moves, waiting, spilling) if kind not in (*AROUND, *CROSS)])
def test_a_move_of_a_batch_has_its_stream(kind):
    assert (kind.on in get_args(waiting.StreamName)) != issubclass(kind, WAITS)


def test_a_kernel_is_run_with_the_arguments_that_it_is_given():
    """What the planner calls has a method with these names."""
    calls = [x for x in ast.walk(ast.parse(inspect.getsource(chunk_body))) if isinstance(x, ast.Call)]
    calls = [x for x in calls if isinstance(x.func, ast.Name) and x.func.id == "call"]
    assert len(calls) > 20
    for x in calls:
        named = {keyword.arg for keyword in x.keywords} - {"gives", "arrays"}
        known = inspect.signature(getattr(Body, x.args[0].value)).parameters
        assert named <= {*known}, x.args[0].value
