"""Ctrl-C at any line of an epoch, set-up or an evaluation: the Trainer goes on as before, or says that it cannot."""

import sys
from pathlib import Path

import pytest
import torch

import hongtu
from hongtu.errors import InputError
from tests import trainers

ROOT = str(Path(hongtu.__file__).parent)
EVERY = 40  # lines, for three take a second; the cases begin at different ones


def lines_of(work):
    """Every line of hongtu that runs, once each, in order."""
    seen = {}

    def trace(frame, event, arg):
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        if event == "line":
            seen.setdefault((frame.f_code, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return list(seen)


def interrupted(work, line):
    """Do work until a line is about to run for the first time; whether it was."""

    def trace(frame, event, arg):
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        if event == "line" and (frame.f_code, frame.f_lineno) == line:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def make():
    return hongtu.Trainer(
        trainers.artifact(), trainers.gcn(dropout=0.3), optimizer=trainers.adam_and_step, device_memory="64KiB"
    )


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 40, 10))
@pytest.mark.parametrize("what", ["train_epoch", "evaluate"])
def test_an_interrupt_at_any_line_leaves_a_trainer_that_goes_on_or_says_that_it_cannot(what, first, tmp_path):
    plain, trainer = make(), make()
    trainer.save(tmp_path / "begin.pt")
    expected = [plain.train_epoch() for _ in range(3)]
    snapshot, wrong, stopped = tmp_path / "begin.pt", [], 0

    def work():
        getattr(trainer, what)()

    found = lines_of(work)
    for line in found[first::EVERY]:
        trainer.load(snapshot)
        trainer._runtime._whole = False  # so that what is done once is done again
        place = f"{Path(line[0].co_filename).name}:{line[1]}"
        stopped += interrupted(work, line)
        try:
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
        if torch.are_deterministic_algorithms_enabled() or not torch.is_grad_enabled():
            wrong.append(f"{place}: torch is in another mode")
    assert stopped > 0.8 * len(found[first::EVERY]), "hardly a line was stopped at"
    assert len(found) > 500 and not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong)
