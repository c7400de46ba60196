"""A few of every fault; ``python -m tests.faults`` does them by the dozen and writes docs/reliability.md."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.faults.kill import kill_and_resume
from tests.faults.leaks import train_long
from tests.faults.memory import replan_many
from tests.faults.outcome import Outcome
from tests.faults.processes import CONTEXT, finish, start_command
from tests.faults.rank_signals import interrupt_ranks
from tests.faults.ranks import disturb_ranks
from tests.faults.report import BEGIN, END, keep, write_report
from tests.faults.run_readers import RUN_READERS, fuzz_run_reader
from tests.faults.signals import Preprocessing, Training, interrupt
from tests.neutral import pieces, write


@pytest.mark.long
def test_a_run_that_is_killed_loses_nothing():
    outcome = kill_and_resume(1, seed=1, total=20)
    assert outcome.tries == 1 and not outcome.losses


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_rank_that_is_lost_loses_nothing(name):
    outcome = disturb_ranks(name, 1, seed=1, total=20)
    assert outcome.tries == 1 and not outcome.losses


@pytest.mark.long
@pytest.mark.parametrize(("kind", "tries"), [(Training, 4), (Preprocessing, 8)])
def test_signals_at_any_line_lose_nothing(kind, tries):
    outcome = interrupt(kind, tries, seed=7)
    assert outcome.tries == tries and not outcome.losses, "\n".join(outcome.losses)


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("dependencies", ["comm", "cache"])
def test_signals_at_any_line_of_ranks_lose_nothing(dependencies):
    outcome = interrupt_ranks(dependencies, 1, seed=7)
    assert outcome.tries == 1 and not outcome.losses, "\n".join(outcome.losses)


@pytest.mark.long
def test_a_layer_that_takes_more_memory_loses_nothing():
    outcome = replan_many(4, seed=1)
    assert outcome.tries == 4 and not outcome.losses


@pytest.mark.parametrize("name", RUN_READERS)
def test_what_a_run_wrote_is_read_again_or_refused(name):
    outcome = fuzz_run_reader(name, 150)
    assert outcome.tries == 150 and not outcome.losses


@pytest.mark.long
def test_two_hundred_epochs_take_no_more_than_forty():
    """In a process that nothing else has used; the first forty evaluate and keep a snapshot twice."""
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
        outcome = pool.submit(train_long, 200, every=20, vertices=60, edges=300).result()
    assert outcome.tries == 160 and not outcome.losses, "\n".join(outcome.losses)


def test_a_leak_is_seen(monkeypatch):
    """The measure itself: a file, a thread's worth of memory."""
    held = []
    from tests.faults import leaks

    real = leaks.taken

    def leaky(record):
        held.append(open("/dev/null"))  # noqa: SIM115
        return real(record)

    monkeypatch.setattr(leaks, "taken", leaky)
    outcome = leaks.train_long(12, every=4, vertices=60, edges=300)
    assert len(outcome.losses) == 3  # all after the first that counts
    for file in held:
        file.close()


def test_the_document_shows_the_newest_of_each_fault(tmp_path):
    results, document = tmp_path / "results.jsonl", tmp_path / "doc.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for tries in (3, 30):
        keep(Outcome("a fault", "no loss", tries, ["one"], "seed | 0"), ["command"], results)
    keep(Outcome("another", "none", 7), ["command"], results)
    for name, read in (("a.npy", 2), ("b.csv", 1)):
        note = f"seeds 0 to 4; {read} were read, {5 - read} refused"
        keep(Outcome(f"damaged {name}", "refused", 5, [name] * read, note), ["command"], results)
    write_report(document, results)
    text = document.read_text()
    assert "| a fault | no loss | 30 | 1 | seed \\| 0 |" in text and "| **47** | **4** |" in text
    joined = "damaged inputs of 2 readers: a.npy, b.csv | refused | 10 | 3 | seeds 0 to 4; 3 were read, 7 refused |"
    assert joined in text and text.count("damaged") == 1
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert json.loads(results.read_text().splitlines()[0])["command"] == "command"


@pytest.mark.parametrize("name", [".", "edges.csv"])
def test_an_input_that_may_not_be_read_is_refused(name, tmp_path):
    source = write(tmp_path / "in", {**pieces(), "edges": None})
    (source / "edges.csv").write_text("0,1\n")
    (source / name).chmod(0)
    command = ["preprocess", str(source), str(tmp_path / "out"), "--partitions", "1", "--chunks", "1"]
    assert finish(start_command(command, tmp_path / "err", obeys_modes=True)) == 2
    text = (tmp_path / "err").read_text()
    assert text.count("\n") == 1 and str(source / name) in text and "cannot be read" in text, text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["err", "in"]
    (source / name).chmod(0o755)
