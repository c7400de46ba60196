"""kill -9 at random moments of a training run, then resume: the result must be that of a run left alone."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

import hongtu
from tests.faults.outcome import Outcome
from tests.faults.run import make_trainer, prepare, same_result

EPOCHS = 60


def train(artifact: str, directory: str) -> None:
    """What the process does: resume where there is something to resume, and train to the end."""
    trainer = make_trainer(hongtu.open_artifact(artifact))
    trainer.resume(directory)
    if trainer.epoch < EPOCHS:
        trainer.fit(EPOCHS - trainer.epoch, run_dir=directory, eval_every=4, save_every=3, progress=False)


def kill_and_resume(tries: int, seed: int) -> Outcome:
    """Each try is a run of its own, killed at a random moment, every third one twice, and then resumed to the end."""
    outcome = Outcome(
        "kill -9 at a random moment of training, then resume",
        "final parameters, optimizers, embeddings, metrics and generators bit-identical to the undisturbed run",
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.kill", "hongtu.trainer"])
    rng = np.random.default_rng(seed)
    killed_after: list[int] = []

    with tempfile.TemporaryDirectory(prefix="hongtu-faults-") as folder:
        artifact = prepare(Path(folder) / "artifact", vertices=1500, edges=9000).path

        def start(directory: Path) -> multiprocessing.process.BaseProcess:
            process = context.Process(target=train, args=(str(artifact), str(directory)))
            process.start()
            return process

        whole = Path(folder) / "whole"
        for directory in (Path(folder) / "warm-up", whole):  # the first compiles kernels
            begun = time.monotonic()
            process = start(directory)
            process.join()
            assert process.exitcode == 0, "the undisturbed run failed"
        pause = (time.monotonic() - begun) / EPOCHS
        for k in range(tries):
            directory = Path(folder) / f"run-{k}"
            for _ in range(2 if k % 3 == 2 else 1):
                process = start(directory)
                _wait_for(process, directory, int(rng.integers(0, EPOCHS)))
                time.sleep(rng.uniform(0, pause))
                process.kill()
                process.join()
                if process.exitcode == -signal.SIGKILL:
                    killed_after.append(_epochs(directory))
            process = start(directory)
            process.join(120)
            finished = process.exitcode == 0
            process.kill()
            outcome.expect(finished and same_result(whole, directory), f"try {k} of seed {seed}")
    outcome.note = f"seed {seed}; {len(killed_after)} kills, after epochs {sorted(killed_after)} of {EPOCHS}"
    return outcome


def _wait_for(process: multiprocessing.process.BaseProcess, directory: Path, epoch: int) -> None:
    while process.is_alive() and _epochs(directory) < epoch:
        time.sleep(0.001)


def _epochs(directory: Path) -> int:
    log = directory / "epochs.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0
