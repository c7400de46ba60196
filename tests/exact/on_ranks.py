"""A random training (``harness.py``) on some ranks: threads that take turns, and call the same, or now and then not."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import hongtu
from hongtu.errors import InputError
from tests import training
from tests.ranks.turns import run_ranks

if TYPE_CHECKING:
    from tests.exact.harness import Case

EPOCHS = 3
CALLS: dict[str, Callable[[hongtu.Trainer], Any]] = {
    "evaluate": lambda t: t.evaluate(),
    "predict": lambda t: t.predict(),
    "train_epoch": lambda t: t.train_epoch(),
    "fit": lambda t: t.fit(1, eval_every=int(t.validates)),  # of which no scheduler wants more
}
BETWEEN = ("nothing", "evaluate", "predict", "save and load", "different", "different")


def train_on_ranks(case: Case) -> None:
    """Train and compare.

    Raises:
        AssertionError: what differs.
    """
    rng, options = case.rng, case.options
    between = [str(rng.choice(BETWEEN)) for _ in range(EPOCHS)]
    different = [[str(name) for name in rng.permutation([*CALLS])[: case.ranks]] for _ in range(EPOCHS)]
    options |= {"dependencies": str(rng.choice(["cache", "comm", "hybrid"])), "device": "cpu"}
    case.kinds |= {f"{case.ranks} ranks", *between, f"dependencies {options['dependencies']}"}
    case.done += [*between, options["dependencies"]]
    expected, out = _expected(case)
    if out is None:
        return

    evaluates = int(case.evaluates)

    def work(group: Any) -> None:
        trainer = hongtu.Trainer(case.artifact, case.layers(), ranks=group, **options)
        for epoch, (loss, gradients) in enumerate(expected):
            _call_between(trainer, between[epoch], different[epoch], folder)
            assert trainer.epoch == epoch
            record = trainer.train_epoch() if case.scheduler is None else trainer.fit(1, eval_every=evaluates)[0]
            training.assert_counted(trainer, record)
            mine = trainer.gradients()
            case.compare(record.loss, mine, loss, gradients)
        found = trainer.predict()
        if group.rank == 0:
            torch.testing.assert_close(case.model.of_all(found).double(), out, rtol=1e-7, atol=1e-7, equal_nan=True)

    with tempfile.TemporaryDirectory(prefix="hongtu-harness-") as directory:
        folder = Path(directory)
        run_ranks(case.ranks, work)


def _expected(case: Case) -> tuple[list[tuple[float, dict[str, torch.Tensor]]], torch.Tensor | None]:
    """Loss and gradients of every epoch, and the output after the last; None for what plain torch cannot compute."""
    expected = []
    for epoch in range(EPOCHS):
        loss, gradients = case.differentiate(epoch)
        if not all(bool(x.isfinite().all()) for x in (loss, *gradients.values())):
            case.kinds.add("not finite")
            return [], None
        expected.append((float(loss), {name: gradient.clone() for name, gradient in gradients.items()}))
        case.optimizer.step()
        if case.scheduler is not None:
            with torch.no_grad():
                case.step_scheduler(float(loss), case.validate() if case.evaluates else {}, {})
    case.modules.eval()
    with torch.no_grad():
        return expected, case.model.run_reference(case.modules, case.problem)


def _call_between(trainer: hongtu.Trainer, what: str, different: list[str], folder: Path) -> None:
    """What all ranks call, or what each calls and is told so, before anything has been done."""
    if what in CALLS:
        CALLS[what](trainer)
    elif what == "save and load":
        trainer.save(folder / f"{trainer.epoch}.pt")
        with trainer.ranks.agreed():  # the first rank has written it
            pass
        trainer.load(folder / f"{trainer.epoch}.pt")
    elif what == "different":
        said = ", ".join(rf"rank {rank} (is )?in {name} \(call \d+\)" for rank, name in enumerate(different))
        try:
            CALLS[different[trainer.ranks.rank]](trainer)
        except InputError as error:
            assert re.search(said, str(error)), error
        else:
            raise AssertionError(f"ranks may call {different} at once")
