"""Random trainings beside plain torch: ``python -m tests.exact.harness --cases 2000``.

A case draws a graph, a model, a loss, a grain, a strategy and a budget, trains some epochs, and between them does what
people do (``events.py``). The other side is torch_geometric's model on the whole graph, to which the same is done. A
case is made again by its number alone.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import hongtu
from hongtu import compiled
from hongtu.errors import AnomalyError, BudgetError
from hongtu.metrics import EpochRecord
from hongtu.model.checks import modes_kept
from hongtu.model.typed import with_types
from tests import additions, problems, staged, training
from tests.exact.drawn import Drawn, draw
from tests.exact.drawn_types import OfTypes
from tests.exact.events import EVENTS, Nothing
from tests.exact.labels import score
from tests.exact.new_trainer import begin_again
from tests.exact.on_ranks import train_on_ranks
from tests.exact.schedulers import RATE, draw_scheduler

EPOCHS = 4
TOLERANCE = 1e-8  # of the largest gradient entry, in float64; a model may amplify what differs by 1e-16
CAST = 0.1  # of the loss, under autocast
CAST_GRADIENT = 0.05  # of the norm of all gradients
CAST_MOVES = 24  # of parameters in bfloat16's last digit; where rows nearly tie, few of them move gradients far
DIGIT_MOVES = 4
LAST_DIGITS = 1e-14  # of a parameter: what a few epochs may round differently
DIVERGED = 1e5  # a gradient beyond which what comes next is rounding alone


class Case:
    """One random training.

    Attributes:
        trainer, modules: the two sides.
        kinds: what it has that others have not.
        done: what was done in between.
        finite: whether both sides still have numbers.
    """

    finite = True

    def __init__(self, number: int) -> None:
        self.rng, self.digits = numbers_of(number), torch.Generator().manual_seed(number)
        drawn = draw(self.rng)
        self.kind, self.problem, self.model, self.loss = drawn.kind, drawn.problem, drawn.model, drawn.loss
        self.class_weights = drawn.loss.weights if drawn.validates else None
        self.cast = bool(self.rng.random() < 0.06) and not drawn.drops
        self.kinds = {*drawn.traits} | ({"autocast"} if self.cast else set())
        self.hooks: list[tuple[str, str, Callable[..., Any]]] = []  # kind, parameter, what is called
        self.hooked: list[str] = []  # modules that have a forward hook
        self.drops: dict[int, Any] = {}  # handles of what drops the input of a layer of the other side
        self.done: list[str] = []
        ranks = not (drawn.links or drawn.drops or self.cast) and self.rng.random() < 0.15
        self.ranks = int(self.rng.integers(2, 4)) if ranks else 1
        n = int(self.rng.integers(1, 5))
        m = int(self.rng.integers(self.ranks, 5))
        vertices = self.problem.num_vertices
        grain = (m, n) if m * n <= vertices else (self.ranks, 1)
        partitioner = str(self.rng.choice(["range", "metis"])) if len(self.problem.edges[0]) else "range"
        self.artifact = problems.prepare(self.problem, *grain, partitioner=partitioner)
        self.options: dict[str, Any] = {
            "loss": self.model.loss,
            "optimizer": self.sgd,
            "scheduler": None,
            "seed": additions.SEED,
            "dtype": torch.float32 if self.cast else torch.float64,
            "strategy": str(self.rng.choice(training.STRATEGIES)),
            "autocast": torch.bfloat16 if self.cast else None,
            "device": "simulated" if not self.cast and self.rng.random() < 0.1 else "cpu",
        }
        self.kinds |= {self.options["device"], self.options["strategy"]}
        self.momentum = float(self.rng.choice([0, 0, 0, 0.9]))
        if not self.cast and self.rng.random() < 0.5:
            name, self.options["scheduler"] = draw_scheduler(self.rng)
            self.kinds.add(name)
        self.opened = contextlib.ExitStack()
        if not ranks and not self.cast and self.rng.random() < 0.1:
            fit = functools.partial(staged.everything, kept=int(self.rng.choice([0, 0, 1])))
            self.options |= self.opened.enter_context(staged.on_disk(fit=fit))
            self.kinds.add("on a disk")
        if (self.rng.random() < 0.6 or "spill" in self.options) and not ranks:
            smallest = training.smallest_budget(self.artifact, self.layers, **self.options)
            self.options["device_memory"] = int(smallest * self.rng.choice([1, 1, 1.2, 2]))
        self.modules = self.model.build_reference(self.problem)
        if isinstance(self.modules, OfTypes):
            self.modules.know(self.layers())
        self.step_reference()
        self.evaluates = drawn.validates and bool(self.problem.masks["val"].any()) and self.rng.random() < 0.7
        if (
            getattr(self.scheduler, "mode", "min") == "max" and not self.evaluates
        ):  # it is refused, by a test of its own
            self.options["scheduler"] = self.scheduler = None
        self.alone = drawn.drops
        if not ranks:
            self.trainer = hongtu.Trainer(self.artifact, self.layers(), **self.options)

    def step_reference(self) -> None:
        """A new optimizer and a new scheduler of the other side."""
        self.optimizer = self.sgd(self.modules.parameters())
        make = self.options["scheduler"]
        self.scheduler = None if make is None else make(self.optimizer)

    def __repr__(self) -> str:
        grain, options = self.artifact.topology.num_dst.shape, self.options
        return (
            f"{self.model.name} on {self.problem.name} ({self.problem.num_vertices} vertices, "
            f"{len(self.problem.edges[0])} edges), {grain}, {options['strategy']}, {options['device']}, "
            f"{options.get('device_memory')}, autocast {self.cast}: {', '.join(self.done) or 'nothing in between'}"
        )

    def sgd(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=RATE, momentum=self.momentum)

    def layers(self) -> list[nn.Module]:
        return with_types(self.model.build(self.problem), self.artifact)

    # ------------------------------------------------------------------------------------------------- both sides

    def run(self) -> None:
        """Train and compare.

        Raises:
            AssertionError: what differs.
        """
        if self.ranks > 1:
            train_on_ranks(self)
            return
        if self.alone:
            self._compare_with_whole()
            return
        for epoch in range(1 if self.cast else EPOCHS):
            if not self.cast and self.rng.random() < (0.7 if epoch else 0.2):
                self._event()
            self._epoch()
            if not self.finite:
                return
        if not self.cast:
            self._predict()

    def _compare_with_whole(self) -> None:
        """With hongtu on the whole graph at once: dropout draws the same there."""
        options = {name: self.options[name] for name in ("loss", "optimizer", "scheduler", "seed", "dtype")}
        whole = hongtu.Trainer(problems.prepare(self.problem, 1, 1), self.layers(), strategy="none", **options)
        for _ in range(EPOCHS):
            both = [trainer.fit(1, eval_every=int(self.evaluates))[0] for trainer in (self.trainer, whole)]
            training.assert_counted(self.trainer, both[0])
            mine, theirs = (trainer.gradients() for trainer in (self.trainer, whole))
            if self.compare(both[0].loss, mine, both[1].loss, theirs) > DIVERGED:
                return

    def _event(self) -> None:
        """Any that there is something for."""
        for number in self.rng.permutation(len(EVENTS)):
            self.done.append(EVENTS[number].__name__)
            try:
                EVENTS[number](self)
            except Nothing:
                self.done.pop()
            else:
                self.kinds.add(EVENTS[number].__name__)
                return

    def differentiate(self, epoch: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The other side's loss, and its gradients."""
        self.optimizer.zero_grad()
        loss = self._reference_loss(epoch)
        if loss.requires_grad:
            loss.backward()
        return loss.detach(), {name: p.grad for name, p in self.modules.named_parameters() if p.grad is not None}

    def _epoch(self) -> None:
        loss, theirs = self.differentiate()
        if not all(bool(x.isfinite().all()) for x in (loss, *theirs.values())):
            self._not_finite()
            return
        epoch, apart, record = self.trainer.epoch, self._parameters_apart(), self._train()
        mine = self.trainer.gradients()
        if self.cast:
            self._compare_cast(epoch, record.loss, float(loss), mine, theirs)
            return
        training.assert_counted(self.trainer, record)
        try:
            largest = self.compare(record.loss, mine, float(loss), theirs)
        except AssertionError:
            if not self._ill_conditioned(epoch, apart, float(loss), theirs):
                raise
            self.finite = False
            self.kinds.add("ill-conditioned")
            return
        for name, buffer in self.modules.named_buffers():
            torch.testing.assert_close(dict(self.trainer.model.named_buffers())[name], buffer, rtol=1e-8, atol=1e-8)
        self.optimizer.step()
        self.finite = largest < DIVERGED
        if self.scheduler is not None and self.finite:
            self._step_scheduler(record)

    @staticmethod
    def compare(loss: float, mine: dict[str, Tensor], expected: float, theirs: dict[str, Tensor]) -> float:
        """The largest gradient entry."""
        others = mine.keys() ^ theirs.keys()  # what the output does not depend on
        assert not any(bool(found.get(name, torch.zeros(1)).any()) for name in others for found in (mine, theirs)), (
            others
        )
        np.testing.assert_allclose(loss, expected, rtol=TOLERANCE, atol=TOLERANCE)
        largest = max((float(g.abs().max()) for g in theirs.values()), default=0.0)
        for name, gradient in theirs.items():
            off = float((mine.get(name, 0) - gradient).abs().max())
            assert off <= TOLERANCE * max(largest, 1e-3), f"gradient of {name} is off by {off}, the largest {largest}"
        return largest

    @torch.no_grad()
    def _step_scheduler(self, record: EpochRecord) -> None:
        """As a script does that looks at the score, or the loss, of validation."""
        self.step_scheduler(record.loss, self.validate() if self.evaluates else {}, record.metrics)
        rates = [[group["lr"] for group in o.param_groups] for o in (self.trainer.optimizer, self.optimizer)]
        np.testing.assert_allclose(*rates, rtol=1e-12)

    def step_scheduler(self, loss: float, expected: dict[str, float], found: dict[str, float]) -> None:
        """The other side's, after it was seen that both would be stepped with the same."""
        for name in expected.keys() & found.keys():
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-7, atol=1e-7, err_msg=name)
        if not isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step()
        elif not expected:
            self.scheduler.step(loss)
        else:
            self.scheduler.step(expected["val" if self.scheduler.mode == "max" else "val_loss"])

    def validate(self) -> dict[str, float]:
        """The score and the loss of validation."""
        with modes_kept(self.modules):
            out = self.model.run_reference(self.modules.eval(), self.problem)
        mask = torch.from_numpy(self.problem.masks["val"])
        target = torch.from_numpy(self.problem.labels)[mask]
        return {
            "val": score(out[mask], target, self.loss.threshold, self.kind),
            "val_loss": float(self.loss.whole(out[mask], target)),
        }

    def _parameters_apart(self) -> float:
        """How far earlier epochs have led the two sides' parameters apart at most, as a share of each one's largest."""
        mine = dict(self.trainer.model.named_parameters())
        both = ((mine[name], p) for name, p in self.modules.named_parameters() if name in mine and p.numel())
        shares = (float(((one - other).abs().max() / other.abs().max().clamp(1e-30)).detach()) for one, other in both)
        return max(shares, default=0.0)

    def _ill_conditioned(self, epoch: int, apart: float, loss: float, theirs: dict[str, Tensor]) -> bool:
        """Whether plain torch's own loss, or gradients, are wrong, too, where parameters move in their last digits, or
        as far as earlier epochs have led them apart: a normalisation of columns that hardly differ, a training that
        diverges."""
        theirs = {name: gradient.clone() for name, gradient in theirs.items()}
        for _ in range(DIGIT_MOVES):
            with self._moved(max(LAST_DIGITS, apart)):
                moved, gradients = self.differentiate(epoch)
            try:
                self.compare(float(moved), gradients, loss, theirs)
            except AssertionError:
                return True
        return False

    @contextlib.contextmanager
    def _moved(self, by: float) -> Iterator[None]:
        """Parameters of plain torch that differ by about as much of each, by numbers of the case's own."""
        before = copy.deepcopy(self.modules.state_dict())
        with torch.no_grad():
            for parameter in self.modules.parameters():
                parameter.mul_(1 + by * torch.randn(parameter.shape, generator=self.digits, dtype=torch.float64))
        yield
        self.modules.load_state_dict(before)

    def _train(self) -> EpochRecord:
        def train() -> EpochRecord:
            if self.scheduler is None:
                return self.trainer.train_epoch()
            return self.trainer.fit(1, eval_every=int(self.evaluates))[0]

        try:
            return train()
        except BudgetError as refused:  # what was changed takes more
            assert self.done, refused
            self.options["device_memory"] = refused.smallest
            begin_again(self)
            return train()

    def _not_finite(self) -> None:
        """What plain torch cannot compute either is refused."""
        self.finite = False
        self.done.append("not finite")
        self.kinds.add("not finite")
        with contextlib.suppress(AnomalyError):
            self._train()
            raise AssertionError("not finite in plain torch alone")

    def _compare_cast(
        self, epoch: int, loss: float, expected: float, mine: dict[str, Tensor], theirs: dict[str, Tensor]
    ) -> None:
        if abs(expected) > DIVERGED:  # of which three digits say nothing
            return
        assert abs(loss - expected) <= CAST * max(1, abs(expected)), (loss, expected)
        off, size = _apart(mine, theirs), _apart(dict.fromkeys(theirs, torch.zeros(())), theirs)
        theirs = {name: gradient.clone() for name, gradient in theirs.items()}
        moves = []
        for _ in range(CAST_MOVES):
            with self._moved(torch.finfo(torch.bfloat16).eps / 2):
                moves.append(_apart(self.differentiate(epoch)[1], theirs))
        with contextlib.suppress(RuntimeError):  # of a model that adds up numbers of two types
            moves.append(_apart(self._gradients_under_autocast(epoch), theirs))
        bound = max(2 * max(moves), CAST_GRADIENT * max(size, 1e-3))
        assert off <= bound, f"gradients are off by {off}, their norm is {size}; they move by up to {max(moves)}"
        if max(moves) > size / 2:
            self.kinds.add("ill-conditioned")

    def _gradients_under_autocast(self, epoch: int) -> dict[str, Tensor]:
        """Plain torch's own, in float32 where they are not in bfloat16."""
        modules = copy.deepcopy(self.modules).float()
        modules.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.model.reference_loss(modules, self.problem, epoch, torch.float32)
        loss.backward()
        return {name: p.grad.double() for name, p in modules.named_parameters() if p.grad is not None}

    def _reference_loss(self, epoch: int | None = None) -> Tensor:
        return self.model.reference_loss(self.modules, self.problem, self.trainer.epoch if epoch is None else epoch)

    def _predict(self) -> None:
        self.modules.eval()
        with torch.no_grad():
            expected = self.model.run_reference(self.modules, self.problem)
        self.modules.train()
        found = self.model.of_all(self.trainer.predict())
        torch.testing.assert_close(found.double(), expected, rtol=1e-7, atol=1e-7, equal_nan=True)
        if self.kind == "classes" and not isinstance(self.modules, OfTypes) and self.rng.random() < 0.3:
            self._correct_and_smooth(expected.softmax(1))

    def _correct_and_smooth(self, y: Tensor) -> None:
        """As torch_geometric's, with the same operator P."""
        self.kinds.add("correct and smooth")
        vertices, mask = self.problem.num_vertices, torch.from_numpy(self.problem.masks["train"])
        own = int(self.rng.integers(1, 4))
        settings = (own, float(self.rng.uniform(0.1, 0.9)), own + 1, float(self.rng.uniform(0.1, 0.9)))
        truth = torch.from_numpy(self.problem.labels)[mask]
        given = self.problem.edge_index, self.problem.edge_weight(), vertices
        edges, weight = pyg.conv.gcn_conv.gcn_norm(*given, add_self_loops=False, dtype=torch.float64)
        theirs = pyg.CorrectAndSmooth(*settings, autoscale=True)
        expected = theirs.correct(y, truth, mask, edges, weight)
        expected = theirs.smooth(expected, truth, mask, edges, weight)
        mine = hongtu.CorrectAndSmooth(*settings, autoscale=True)
        operator = hongtu.Propagation(self.artifact, y.shape[1], dtype=torch.float64)
        labels = torch.from_numpy(self.problem.labels)
        found = mine.smooth(operator, mine.correct(operator, y, labels, mask), labels, mask)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7, equal_nan=True)


@dataclass
class Ran:
    """A case that was run: what it was, of which kinds, and what is wrong ("" if nothing is)."""

    number: int
    title: str
    kinds: set[str]
    wrong: str = ""


def numbers_of(case: int) -> np.random.Generator:
    return np.random.default_rng([7, case])


def has(drawn: Drawn, word: str) -> bool:
    """Whether its traits, or the name of its model, say so."""
    return any(word in said for said in (drawn.model.name, *drawn.traits))


def _apart(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """The norm of the difference of all."""
    return sum(float((some[name] - other).square().sum()) for name, other in others.items()) ** 0.5


def run_case(number: int) -> Ran:
    torch.set_num_threads(1)
    problems._prepared.clear()
    before, compiled.ALWAYS = compiled.ALWAYS, number % 4 == 3 or compiled.ALWAYS  # else small graphs run plain forms
    ran, case = Ran(number, f"case {number}", set()), None
    try:
        case = Case(number)
        case.run()
    except Exception:
        ran.wrong = traceback.format_exc()
    finally:
        always, compiled.ALWAYS = compiled.ALWAYS, before
        if case is not None:
            case.opened.close()
            kinds = case.kinds | ({"compiled kernels"} if always else set())
            ran.title, ran.kinds = f"case {number}: {case!r}", kinds
            shutil.rmtree(case.artifact.path, ignore_errors=True)
    return ran


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="print every case")
    parser.add_argument("--having", default="", help='only those whose model or graph has this: "typed graphs", say')
    given = parser.parse_args()
    numbers, wrong, start = list(range(given.first, given.first + given.cases)), 0, time.perf_counter()
    if given.having:
        numbers = [number for number in numbers if has(draw(numbers_of(number)), given.having)]
    kinds: Counter[str] = Counter()

    def so_far(cases: int) -> str:
        return f"{cases} cases, {wrong} wrong, {time.perf_counter() - start:.0f} s"

    with ProcessPoolExecutor(given.workers) as pool:
        for ran in pool.map(run_case, numbers, chunksize=4):
            wrong += bool(ran.wrong)
            kinds.update(ran.kinds)
            if ran.wrong or given.verbose:
                print(f"{ran.title}\n{ran.wrong}", flush=True)
            if ran.number % 100 == 99:
                print(so_far(ran.number + 1 - given.first), flush=True)
    print("cases with", ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    print(so_far(len(numbers)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
