"""kill -9 at random moments of a training run, then resume: the result must be that of a run left alone."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

import numpy as np

import hongtu
from tests.faults.outcome import Outcome
from tests.faults.processes import epochs, finish, start, wait_for_a_moment
from tests.faults.run import make_trainer, prepare, same_result


def train(artifact: str, directory: str, total: int) -> None:
    """What the process does: resume where there is something to resume, and train to the end."""
    trainer = make_trainer(hongtu.open_artifact(artifact))
    trainer.resume(directory)
    if trainer.epoch < total:
        trainer.fit(total - trainer.epoch, run_dir=directory, eval_every=4, save_every=3, progress=False)


def kill_and_resume(tries: int, seed: int = 0, total: int = 60) -> Outcome:
    """Each try is a run of its own, killed at a random moment, every third one twice, and then resumed to the end."""
    outcome = Outcome(
        "kill -9 at a random moment of training, then resume",
        "final parameters, optimizers, embeddings, metrics and generators bit-identical to the undisturbed run",
    )
    rng = np.random.default_rng(seed)
    killed_after: list[int] = []
    with tempfile.TemporaryDirectory(prefix="hongtu-faults-") as folder:
        artifact = str(prepare(Path(folder) / "artifact", vertices=1500, edges=9000).path)
        whole = Path(folder) / "whole"
        begun = time.monotonic()
        assert finish(start(train, artifact, str(whole), total)) == 0, "the undisturbed run failed"
        pause = (time.monotonic() - begun) / total
        for k in range(tries):
            directory = Path(folder) / f"run-{k}"
            for _ in range(2 if k % 3 == 2 else 1):
                process = start(train, artifact, str(directory), total)
                wait_for_a_moment(process, directory, total, pause, rng)
                process.kill()
                if finish(process) == -signal.SIGKILL:
                    killed_after.append(epochs(directory))
            code = finish(start(train, artifact, str(directory), total))
            outcome.expect(code == 0 and same_result(whole, directory), f"try {k} of seed {seed}: exit code {code}")
    outcome.note = f"seed {seed}; {len(killed_after)} kills, after epochs {sorted(killed_after)} of {total}"
    return outcome
