"""Ctrl-C at every line of an epoch, set-up, evaluation, planning anew or a load: the Trainer goes on as before, or says
that it cannot."""

import linecache
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes

import hongtu
from hongtu.errors import InputError
from tests import trainers
from tests.faults.signals import lines_of, tracing

SLICES = 10  # every line is in one of them


def interrupted(work, line, *, at_end=False):
    """Do work until a line is about to run for the first time, or a ``with`` at its end; whether it was."""
    code, number = line
    left = 2 if at_end else 1

    def inside(frame, event, arg):
        nonlocal left
        left -= event == "line" and frame.f_lineno == number
        if not left:
            raise KeyboardInterrupt
        return inside

    try:
        with tracing(lambda frame: inside if frame.f_code is code else None):
            work()
    except KeyboardInterrupt:
        return True
    return False


def is_with(line):
    return linecache.getline(line[0].co_filename, line[1]).strip().startswith("with ")


def make(device="cpu"):
    return hongtu.Trainer(
        trainers.artifact(),
        trainers.gcn(dropout=0.3),
        optimizer=trainers.adam_and_step,
        device=device,
        device_memory="64KiB",
    )


def thaw_and_train(trainer):
    """Planned without a gradient of the first layer, and planned anew with it."""
    trainer.model[0].requires_grad_(True)
    trainer.train_epoch()


ALL = "train engine model nn device kernels plan graph"
WORKS = {  # what is done, on which device, and where it is stopped
    "train": (lambda trainer, snapshot: trainer.train_epoch(), "cpu", ALL),
    "evaluate": (lambda trainer, snapshot: trainer.evaluate(), "cpu", ALL),
    "thaw": (lambda trainer, snapshot: thaw_and_train(trainer), "cpu", "train"),
    "load": (lambda trainer, snapshot: trainer.load(snapshot), "cpu", ALL),
    "streams": (lambda trainer, snapshot: trainer.train_epoch(), "simulated", "device"),
}


class Beginning:
    """A trainer as it was made, with all that is done once still to be done.

    Args:
        frozen: planned without a gradient of the first layer.
    """

    def __init__(self, trainer, snapshot, frozen):
        self.trainer, self.runtime, self.snapshot, self.frozen = trainer, trainer._runtime, snapshot, frozen
        trainer.save(snapshot)
        trainer.model[0].requires_grad_(not frozen)
        self.plan = self.runtime._plan_changed() if frozen else None
        network = self.runtime._network
        self.chosen = network.transform_first, network.once_per_vertex, network.forms

    def again(self):
        self.trainer.load(self.snapshot)
        self.trainer.model[0].requires_grad_(not self.frozen)
        if self.plan is not None:
            network, (sides, once, network.forms) = self.runtime._network, self.chosen
            network.set_transform_first(sides)
            network.set_once_per_vertex(once)
            self.runtime._replace_engine(self.plan)
            self.runtime._frozen = self.runtime._untrained()
        self.runtime._whole = False


@pytest.mark.most(7)
@pytest.mark.every
@pytest.mark.long
@pytest.mark.parametrize("first", range(SLICES))
@pytest.mark.parametrize("what", WORKS)
def test_an_interrupt_at_any_line_leaves_a_trainer_that_goes_on_or_says_that_it_cannot(what, first, tmp_path):
    use, device, rooms = WORKS[what]
    plain, trainer = make(device), make(device)
    snapshot, wrong, stopped = tmp_path / "begin.pt", [], 0
    beginning = Beginning(trainer, snapshot, what == "thaw")
    expected = [plain.train_epoch() for _ in range(3)]

    def work():
        use(trainer, snapshot)

    beginning.again()
    found = list(lines_of(work, rooms))
    lines = [(line, False) for line in found[first::SLICES]]
    lines += [(line, True) for line, _ in lines if is_with(line)]
    for line, at_end in lines:
        beginning.again()
        place = f"{Path(line[0].co_filename).name}:{line[1]}{' at its end' * at_end}"
        stopped += interrupted(work, line, at_end=at_end) and not at_end
        try:
            trainer.model[0].requires_grad_(True)
            record = trainer.train_epoch()
        except InputError as error:
            if "load a snapshot" not in str(error):
                wrong.append(f"{place}: {error}")
            continue
        except Exception as error:
            wrong.append(f"{place}: {type(error).__name__} {error}")
            continue
        if record.loss != expected[record.epoch - 1].loss:
            wrong.append(f"{place}: the loss of epoch {record.epoch} is {record.loss}")
        if (
            record.bytes != expected[record.epoch - 1].bytes
            or record.arena_bytes != expected[record.epoch - 1].arena_bytes
        ):
            wrong.append(f"{place}: counted {record.bytes}, {record.arena_bytes}")
        if torch.are_deterministic_algorithms_enabled() or not torch.is_grad_enabled() or modes():
            wrong.append(f"{place}: torch is in another mode")
    print(f"{what}, slice {first}: stopped at {stopped} of {len(found[first::SLICES])} lines")
    assert stopped > 0.8 * len(found[first::SLICES]), "hardly a line was stopped at"
    assert len(found) > 50 and not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong)
