"""``make gpu-check`` without a GPU: what it keeps of parts that hang, crash or are killed, and its report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import gpu_check, gpu_epoch, gpu_links, gpu_parts, gpu_processes, gpu_results
from experiments.gpu_parts import Part
from tests import kernel_parity

ROOT = Path(__file__).parents[2]
SMALL = ["--device", "simulated", "--vertices", "300", "--megabytes", "1"]
SMALL += ["--order", "input", "--chunks", "4", "--epochs", "3"]


def check(monkeypatch, tmp_path, *more):
    """Run it; returns its exit code and the last row of each part."""
    out, work = tmp_path / "out", tmp_path / "work"
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--out", str(out), "--work", str(work), *SMALL, *more])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as stopped:
        gpu_check.main()
    rows = [json.loads(line) for line in (out / "gpu-check.jsonl").read_text().splitlines()]
    return stopped.value.code, {row["part"]: row for row in rows}


def python(name, code, limit=20, **options):
    return Part(name, (sys.executable, "-c", code), limit, **options)


def steps(monkeypatch, *found, late=()):
    """Have the check run these parts, step by step."""

    def first(check):
        check.late += late
        yield from found

    monkeypatch.setattr(gpu_check, "first", first)


@pytest.mark.long
def test_epochs_and_rates_on_a_simulated_device(monkeypatch, tmp_path):
    names = ("artifact of 300", "links", "machine", "gcn eager", "gcn torch_geometric")
    code, rows = check(monkeypatch, tmp_path, "--slow", "10", "--only", *names, "gcn captured")
    done = dict.fromkeys((*names, "gcn captured"), "done") | {"machine": "left out"}
    assert {name: row["status"] for name, row in rows.items()} == done and code == 0
    for name in ("gcn eager", "gcn captured"):
        result = rows[name]["result"]
        printed = (tmp_path / "work" / f"{name}.out").read_text().splitlines()
        assert len(printed) == 1 + 3 and "predicted" in json.loads(printed[0])
        assert result["counted_is_predicted"] and result["slab"] in (True, False) and result["scripts"]
        assert "captures" in result["captured"]  # the reason
        assert result["vertices"] == 300 and result["losses"] == pytest.approx(rows[names[-1]]["result"]["losses"])
    assert rows["links"]["result"]["rates"]["rows of 512 bytes written, GB/s"] > 0
    text = (tmp_path / "out" / "gpu-check.txt").read_text()
    assert "s an epoch" in text and "a chunk of nothing, us" in text and "captured: " in text
    assert len(list((tmp_path / "out").iterdir())) == 3  # few and small enough to come back
    assert not list((tmp_path / "work").glob("graph of*"))


def test_what_made_no_artifact_says_so_and_leaves_no_graph(tmp_path):
    options = SimpleNamespace(work=tmp_path, chunks=0, order="input")
    command = gpu_parts.made(options, 40, 1).command
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 2 and "chunks: 0" in told.stderr and not list(tmp_path.iterdir())


HANG = "import subprocess, time; print('{\"a\": 1}', flush=True); subprocess.Popen(['sleep', '77.25']); time.sleep(77)"


def test_what_hangs_crashes_or_fails_has_a_row_that_says_so_and_costs_no_other(monkeypatch, tmp_path):
    crash = "import os; os.kill(os.getpid(), 11)"
    tests = (
        "print('FAILED tests/a.py::test_rows[1] - wrong'); print('FAILED b'); print('2 failed'); raise SystemExit(1)"
    )
    steps(
        monkeypatch,
        [python("hangs", HANG, 1), python("crashes", crash), python("good", "print(7)"), python("tests", tests)],
        [
            python(
                "warns", "import warnings\nfor k in range(9): warnings.warn(f'refused to pin {k % 2} bytes')\nprint(7)"
            )
        ],
        [python("fails", "import sys; print('begun'); sys.exit('ValueError: no room')"), Part("none", ("no-such",), 5)],
        late=[python("late", "print('{}')")],
    )
    code, rows = check(monkeypatch, tmp_path)
    assert {name: row["status"] for name, row in rows.items()} == {
        "hangs": "took too long", "crashes": "failed", "good": "done", "tests": "failed", "fails": "failed",
        "none": "left out", "late": "done", "warns": "done",
    }  # fmt: skip
    assert code == 1 and rows["hangs"]["result"] == {"a": 1} and rows["hangs"]["seconds"] < 15
    assert subprocess.run(["pgrep", "-f", "sleep 77.25"], capture_output=True).stdout == b"", "a child was left behind"
    why = {name: row.get("why", "") for name, row in rows.items()}
    here = 'in "<string>", line 1 in <module>'
    assert why["hangs"] == f"took too long: {here}" and why["crashes"] == f"ended by SIGSEGV: {here}"
    assert why["tests"] == "2 failed, first FAILED tests/a.py::test_rows[1] - wrong"
    assert why["fails"] == "exit code 1: ValueError: no room" and "no-such" in why["none"]
    assert rows["warns"]["warned"] == ["refused to pin 0 bytes", "refused to pin 1 bytes"]
    text = (tmp_path / "out" / "gpu-check.txt").read_text()
    assert "  7  refused to pin 0 bytes" in text and all(reason in text for reason in why.values())
    assert "begun" in (tmp_path / "out" / "gpu-check.log").read_text()


def test_rows_outlive_an_emptied_out_and_only_what_failed_is_run_again(monkeypatch, tmp_path):
    mark = tmp_path / "mark"
    again = f"import pathlib, sys; sys.exit(not pathlib.Path({str(mark)!r}).exists())"
    steps(monkeypatch, [python("good", "print('{}')"), python("fails", again)])
    _, rows = check(monkeypatch, tmp_path)
    assert rows["fails"]["status"] == "failed"
    shutil.rmtree(tmp_path / "out")
    mark.touch()
    monkeypatch.setattr(gpu_check, "more", lambda found: gpu_check.first(found))
    code, _ = check(monkeypatch, tmp_path, "--more")
    names = [json.loads(row)["part"] for row in (tmp_path / "out" / "gpu-check.jsonl").read_text().splitlines()]
    assert sorted(names[:2]) == ["fails", "good"] and names[2:] == ["fails"] and code == 0
    _, rows = check(monkeypatch, tmp_path, "--epochs", "9", "--seconds", "0.5")
    assert {row["status"] for row in rows.values()} == {"done"}, "what was done was begun again"
    steps(monkeypatch, [python("other", "print('{}')")])
    _, rows = check(monkeypatch, tmp_path, "--seconds", "0.5")
    assert rows["other"]["status"] == "no time left"


@pytest.mark.parametrize("cut", ['{"part": "next", "sta', '{"part": "next"}\n{"par', "\0\0\0"])
def test_a_row_that_was_cut_loses_no_other(monkeypatch, tmp_path, cut):
    """As where a call is killed while it writes."""
    steps(monkeypatch, [python("good", "print(1)")], [python("next", "print(2)")])
    check(monkeypatch, tmp_path, "--only", "good")
    with open(tmp_path / "work" / "gpu-check.jsonl", "a") as rows:
        rows.write(cut)
    _, rows = check(monkeypatch, tmp_path, "--seconds", "30")
    begun = [json.loads(row)["part"] for row in (tmp_path / "out" / "gpu-check.jsonl").read_text().splitlines()]
    assert rows["good"]["said"] == "1" and rows["next"]["said"] == "2" and begun.count("good") == 1


@pytest.mark.parametrize("full", ["out", "work"])
def test_what_cannot_be_written_ends_no_call(monkeypatch, tmp_path, capsys, full):
    """A file where ``--out`` should be, and a row that the disk has no room for."""
    steps(monkeypatch, [python("good", "print(1)")], [python("next", "print(2)")])
    if full == "out":
        (tmp_path / "out").write_text("")
    else:
        (tmp_path / "work" / "gpu-check.jsonl").mkdir(parents=True)
        monkeypatch.setattr(gpu_check, "kept", lambda path: [])
    with pytest.raises((NotADirectoryError, FileNotFoundError)):  # only where the test looks
        check(monkeypatch, tmp_path)
    said = capsys.readouterr().out
    assert said.count("done") == 2 and "cannot be written" in said


ILLEGAL = "raise RuntimeError('CUDA error: an illegal memory access was encountered')"


@pytest.mark.long
@pytest.mark.parametrize(
    ("eager", "blamed"),
    [("os.abort()", False), ("time.sleep(60)", False), (ILLEGAL, False), ("1 / 0", True), ("print(1)", True)],
    ids=["crash", "hang", "illegal address", "error", "nothing"],
)
def test_a_fault_that_an_eager_run_has_too_is_not_one_of_capturing(monkeypatch, tmp_path, eager, blamed):
    """As of a kernel: the runs of other models are captured as before."""
    code = f"import os, sys, time\nif '--eager' in sys.argv:\n {eager}\nelse:\n os.abort()"
    kinds = {"captures": True, "eager": ("--eager",)}
    found = [python("eager", code, 2), python("captured", code, 2, **kinds)]
    found[0] = replace(found[0], command=(*found[0].command, "--eager"))
    steps(monkeypatch, *([part] for part in found), [python("next", "import sys; print(sys.argv[1:])", **kinds)])
    for _ in range(2):  # a call, and one more after it
        _, rows = check(monkeypatch, tmp_path)
        assert rows["captured"]["status"] == "failed" and rows["captured"]["crashed"] == blamed
        assert rows["next"]["said"] == str(["--eager"] if blamed else [])


def test_every_captured_run_has_an_eager_one_of_the_same_command():
    parts = [step for step in gpu_parts.first(found_by(options_of_calls(Path("work"), 300)))]
    runs = {part.name: part for step in parts for part in step if part.alike}
    for model in ("gcn", "gat"):
        for of in ("", " in 25%"):
            captured, eager = runs[f"{model} captured{of}"], runs[f"{model} eager{of}"]
            assert gpu_check.eagerly(captured) == gpu_check.said(eager.command)


def found_by(options, small=False):
    """A check that has found nothing yet."""
    found = SimpleNamespace(options=options, known={}, late=[], done=lambda part: False)
    found.artifact = lambda name, seconds: not small
    return found


def test_a_measurement_that_crashes_or_hangs_is_named(capsys):
    rates = gpu_links.Rates(SimpleNamespace(device="cuda"))
    rates.begin("copy")
    rates.note("copy, GB/s", 7.0)
    assert "measuring" not in (before := json.loads(capsys.readouterr().out.splitlines()[-1]))
    rates.begin("attend")
    row = {"part": "rates", "status": "failed", "why": "exit code 1: x", "result": json.loads(capsys.readouterr().out)}
    assert row["result"]["rates"] == before["rates"] and "measuring attend: exit code 1: x" in gpu_results.line(row)


def test_what_is_imported_for_a_part_takes_none_of_its_time(monkeypatch, tmp_path):
    """As from a disk that a fresh machine has not read yet."""
    begin = gpu_check.begin
    monkeypatch.setattr(gpu_check, "begin", lambda *found: time.sleep(2.5) or begin(*found))
    steps(monkeypatch, [python("memory", "import time; time.sleep(0.1); print(1)", 2)])
    _, rows = check(monkeypatch, tmp_path)
    assert rows["memory"]["status"] == "done" and rows["memory"]["begun"] > 2 > rows["memory"]["seconds"]


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), UnicodeEncodeError("ascii", "é", 0, 1, "no")])
def test_what_nobody_reads_is_kept(monkeypatch, tmp_path, error):
    """As where the connection to a machine is gone, and what it prints with it."""

    def unread(*_, **__):
        raise error

    monkeypatch.setattr(gpu_check, "print", unread, raising=False)
    steps(monkeypatch, [python("good", "print(1)")], [python("next", "print(2)")])
    code, rows = check(monkeypatch, tmp_path)
    assert code == 0 and (rows["good"]["said"], rows["next"]["said"]) == ("1", "2")


def test_another_machine_goes_on_with_the_rows_of_the_first(monkeypatch, tmp_path):
    """But makes what lay there, and says itself what it is."""
    mark, names = tmp_path / "mark", ("machine", "limits", "artifact of 300", "good")
    again = python("fails", f"import pathlib, sys; sys.exit(not pathlib.Path({str(mark)!r}).exists())")
    steps(monkeypatch, [again, *(python(name, "print(1)") for name in names)])
    check(monkeypatch, tmp_path)
    mark.touch()
    (tmp_path / "there").mkdir()
    code, rows = check(monkeypatch, tmp_path / "there", "--known", str(tmp_path / "out" / "gpu-check.jsonl"))
    written = (tmp_path / "there" / "out" / "gpu-check.jsonl").read_text().splitlines()
    begun = [json.loads(row)["part"] for row in written]
    assert code == 0 and sorted(begun[:2]) == ["fails", "good"]
    assert sorted(begun[2:]) == sorted({"fails", *names} - {"good"}) and len(rows) == 5


def test_a_process_that_the_driver_holds_is_not_waited_for(monkeypatch):
    process, limits = gpu_processes.begin(("sleep", "60"), None, None), []
    wait = process.wait

    def held(limit=None):
        limits.append(limit)
        raise subprocess.TimeoutExpired("sleep", limit)

    monkeypatch.setattr(process, "wait", held)
    gpu_processes.end(process)
    assert limits == [10] and wait(10) == -signal.SIGKILL


def test_a_tool_that_cannot_be_executed_is_left_out(monkeypatch, tmp_path):
    tool = tmp_path / "ncu"
    tool.write_text("")
    steps(monkeypatch, [Part("counters", (str(tool),), 5)], [python("next", "print(2)")])
    code, rows = check(monkeypatch, tmp_path)
    assert rows["counters"]["status"] == "left out" and "Permission denied" in rows["counters"]["why"]
    assert rows["next"]["status"] == "done" and code == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "broken"),
    [("import os; os.abort()", True), ("import time; time.sleep(60)", True), ("1 / 0", False),
     ("import time\nfor k in range(600):\n print(k, flush=True)\n time.sleep(0.1)", False),
     ("raise RuntimeError('CUDA error: an illegal memory access was encountered')", True),
     ("raise RuntimeError('kernel add_rows on GPU 0: <CUresult.CUDA_ERROR_ILLEGAL_ADDRESS: 700>')", True),
     ("raise RuntimeError('kernel add_rows on GPU 0: <CUresult.CUDA_ERROR_OUT_OF_MEMORY: 2>')", False)],
    ids=["crash", "hang", "error", "slow", "illegal address of torch", "illegal address of ours", "no room"],
)  # fmt: skip
def test_after_a_fault_of_what_is_captured_nothing_is(monkeypatch, tmp_path, fault, broken):
    said = "import json, sys; print(json.dumps(sys.argv[1:]))"
    kinds = {"captures": True, "eager": ("--eager",)}
    found = [[python("before", said, **kinds)], [python("first", fault, 2, **kinds)]]
    found += [[python("second", said, **kinds), python("third", said)]]
    steps(monkeypatch, *found)
    _, rows = check(monkeypatch, tmp_path)
    assert rows["second"]["said"] == ('["--eager"]' if broken else "[]") and rows["third"]["said"] == "[]"
    assert ("'first' crashed or hung" in rows["second"].get("note", "")) == broken
    begun = {name: row["begun"] for name, row in rows.items() if name != "first"}
    _, rows = check(monkeypatch, tmp_path)  # a call before a mend
    assert {name: row["begun"] for name, row in rows.items() if name != "first"} == begun, "what was done ran again"
    assert rows["before"]["said"] == "[]"
    steps(monkeypatch, [python("first", said, **kinds)], [python("second", said, **kinds)])  # a call after a mend
    _, rows = check(monkeypatch, tmp_path)
    assert rows["first"]["said"] == rows["second"]["said"] == "[]" and "note" not in rows["second"]


def test_runs_of_one_model_whose_losses_differ_are_no_success(monkeypatch, tmp_path):
    found = [("a", "[1.0, 0.5]"), ("a", "[1.0, 0.50001, 0.4]"), ("a", "[1.0, 0.6]"), ("b", "[3.0]")]
    found += [("a", "[1.0, 0.5]"), ("a", "[NaN]")]
    runs = [python(str(k), f"print('{{\"losses\": {x}}}')", alike=alike) for k, (alike, x) in enumerate(found)]
    steps(monkeypatch, *([run] for run in runs))
    code, rows = check(monkeypatch, tmp_path)
    status = [row["status"] for row in rows.values()]
    assert status == ["done", "done", "losses differ", "done", "done", "losses differ"] and code == 1
    assert rows["2"]["why"] == "losses [1.0, 0.6] are not those of '0': [1.0, 0.5]"


PROBE = """
import json, os, sys
forked, files = "gpu_check.py" in sys.orig_argv, len(os.listdir("/proc/self/fd"))
print(json.dumps([sys.argv[1:], os.environ["A"], forked, files]))
how = {"passes": exit, "fails": lambda: exit(3), "says": lambda: exit("why"), "raises": lambda: 1 / 0, "ends": os.abort}
how[sys.argv[1]]()
"""
FORKS = """
import importlib, mmap, subprocess, sys
from experiments import gpu_processes
importlib.import_module = lambda name: None
if "driver" in sys.argv:
    file = open("libcuda.so.1", "rb")
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
for how in ("passes", "fails", "says", "raises", "ends"):
    with open(how + ".out", "wb") as out, open(how + ".err", "wb") as err:
        print(gpu_processes.begin((sys.executable, "-m", "probe", how), out, err, {"A": how}, True).wait())
"""


@pytest.mark.parametrize("driver", [False, True])
def test_what_begins_in_a_copy_of_the_check_is_as_if_it_had_been_executed(tmp_path, driver):
    """And is executed where the check has the driver of a GPU."""
    for name, text in {"probe.py": PROBE, "gpu_check.py": FORKS, "libcuda.so.1": "driver"}.items():
        (tmp_path / name).write_text(text)
    command, path = [sys.executable, "gpu_check.py", *["driver"] * driver], f"{ROOT}{os.pathsep}{tmp_path}"
    told = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["0", "3", "1", "1", str(-signal.SIGABRT)], told.stderr
    for how in ("passes", "fails", "says", "raises", "ends"):
        argv, a, forked, files = json.loads((tmp_path / f"{how}.out").read_text())
        assert argv == [how] and a == how and forked is not driver and files <= 4
    said = {how: (tmp_path / f"{how}.err").read_text() for how in ("passes", "says", "raises", "ends")}
    assert not said["passes"] and said["says"] == "why\n" and "ZeroDivisionError" in said["raises"]
    assert "Fatal Python error: Aborted" in said["ends"]


def test_a_killed_call_leaves_its_rows_and_nobody_on_the_gpu(monkeypatch, tmp_path):
    """Not even what has left the session of the call, and no copy of its process."""
    script = tmp_path / "killed.py"
    script.write_text(
        "import importlib, sys\nfrom experiments import gpu_check\nfrom experiments.gpu_parts import Part\n"
        "importlib.import_module = lambda name: None\n"
        "def first(check):\n"
        "    yield [Part('good', (sys.executable, '-c', 'print(1)'), 20)]\n"
        "    yield [Part('long', ('setsid', 'sleep', '78.25'), 60),\n"
        "           Part('copy', (sys.executable, '-m', 'sleeps'), 60, forked=True)]\n"
        "gpu_check.first = first\ngpu_check.main()\n"
    )
    (tmp_path / "sleeps.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(78)\n")
    command = [sys.executable, str(script), "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), *SMALL]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    call = subprocess.Popen([*command, "--device", "cuda"], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    copy = tmp_path / "work" / "copy.out"
    sleeping = ["pgrep", "-f", "^sleep 78.25"]
    until = time.monotonic() + 60
    while not (copy.exists() and copy.read_text().strip()) and time.monotonic() < until:
        time.sleep(0.05)
    call.kill()
    call.wait()
    assert subprocess.run(sleeping, capture_output=True).stdout and alive(int(copy.read_text()))
    assert '"good"' in (tmp_path / "out" / "gpu-check.jsonl").read_text()
    steps(monkeypatch, [python("next", "print(1)")])
    _, rows = check(monkeypatch, tmp_path)
    assert not subprocess.run(sleeping, capture_output=True).stdout and not alive(int(copy.read_text()))
    assert rows["good"]["status"] == rows["next"]["status"] == "done"


@pytest.mark.parametrize("said", ["", "24GiB"])
def test_parts_on_a_gpu_have_the_allocator_of_a_run_and_the_memory_that_the_host_grows_to(tmp_path, said):
    names = "HONGTU_HOST_MEMORY", "PYTORCH_CUDA_ALLOC_CONF"
    script = (
        "import sys\nfrom experiments import gpu_check\nfrom experiments.gpu_parts import Part\n"
        f'code = "import os; print([os.environ[name] for name in {names}])"\n'
        "gpu_check.first = lambda check: [[Part('says', (sys.executable, '-c', code), 20)]]\ngpu_check.main()\n"
    )
    (tmp_path / "check.py").write_text(script)
    command = [sys.executable, "check.py", "--out", "out", "--work", "work", "--device", "cuda"]
    environment = {name: value for name, value in os.environ.items() if name not in names} | {"PYTHONPATH": str(ROOT)}
    environment |= {"HONGTU_HOST_MEMORY": said} if said else {}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    row = json.loads((tmp_path / "out" / "gpu-check.jsonl").read_text())
    assert row["said"] == str([said or "96GiB", "expandable_segments:True"])


def alive(process):
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and ") Z " not in stat.read_text()  # whoever should take note of its end may not


def test_a_call_that_is_told_twice_to_end_has_a_row_of_all_that_ran(tmp_path):
    """As by `make`, which hands a signal on that its children have got."""
    script = tmp_path / "ended.py"
    script.write_text(
        "from experiments import gpu_check\nfrom experiments.gpu_parts import Part\n"
        "gpu_check.first = lambda check: [[Part(str(k), ('sleep', '79'), 60) for k in range(5)]]\n"
        "gpu_check.main()\n"
    )
    command = [sys.executable, str(script), "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), *SMALL]
    call = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
    until = time.monotonic() + 60
    while not (tmp_path / "work" / "4.err").exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.2)
    call.terminate()
    assert call.stdout is not None and b"the call ended" in call.stdout.readline()
    call.send_signal(signal.SIGHUP)
    assert call.wait(30) == 143
    rows = [json.loads(row) for row in (tmp_path / "out" / "gpu-check.jsonl").read_text().splitlines()]
    assert [(row["part"], row["status"]) for row in rows] == [(str(k), "the call ended") for k in range(5)]


def test_a_part_that_ran_when_the_call_was_ended_is_not_blamed(monkeypatch, tmp_path):
    def first(check):
        check.late.append(python("beside", "import time; time.sleep(60)", 60, captures=True))
        yield [python("good", "import time; time.sleep(0.5)")]
        raise SystemExit(143)  # as a signal does

    monkeypatch.setattr(gpu_check, "first", first)
    code, rows = check(monkeypatch, tmp_path)
    assert code == 143 and rows["good"]["status"] == "done"
    assert rows["beside"]["status"] == "the call ended" and not rows["beside"]["crashed"]


def test_a_part_for_which_little_time_was_left_is_not_blamed(monkeypatch, tmp_path):
    steps(monkeypatch, [python("last", "import time; time.sleep(60)", 60, captures=True)])
    _, rows = check(monkeypatch, tmp_path, "--seconds", "2")
    assert rows["last"]["status"] == "took too long" and not rows["last"]["crashed"]


@pytest.mark.long
def test_an_artifact_that_is_late_ends(monkeypatch, tmp_path):
    said = []

    def first(check):
        check.late += [python("small", "print(1)"), python("large", "import time; time.sleep(60)", 60)]
        yield [python("other", "print(1)")]
        said.extend([check.artifact("small", 4), check.artifact("large", 1), check.artifact("none", 1)])
        yield [python("last", "print(1)")]

    monkeypatch.setattr(gpu_check, "first", first)
    _, rows = check(monkeypatch, tmp_path)
    assert said == [True, False, False]
    assert rows["large"]["status"] == "took too long" and rows["last"]["status"] == "done"


def options_of_calls(work, seconds):
    kinds = {"device": "cuda", "order": "input", "more": True}
    return SimpleNamespace(work=work, vertices=1000, megabytes=1, chunks=1, epochs=3, seconds=seconds, **kinds)


@pytest.mark.parametrize("known", [{}, {"machine": {"status": "failed"}}], ids=["a fresh machine", "after the first"])
def test_both_calls_are_bounded_and_eager_runs_come_first(tmp_path, known):
    options = options_of_calls(tmp_path, 300)
    found = SimpleNamespace(options=options, known=known, late=[], done=lambda part: False)
    found.artifact = lambda name, seconds: name.endswith("1000")
    first, more = ([part for step in call(found) for part in step] for call in (gpu_parts.first, gpu_parts.more))
    assert {part.name for part in first} <= {part.name for part in more} or not known
    for parts in (first, more):
        assert all(0 < part.limit <= 150 for part in parts) and len({part.name for part in parts}) == len(parts)
    names = [part.name for part in first if part.alike]
    assert names == [f"{model} {run}" for model in ("gcn", "gat") for run in gpu_parts.RUNS]
    assert [part.captures for part in first if part.alike] == 2 * [False, True, False, False, True]
    captures = {part.name for part in first if part.captures and not part.alike}
    assert captures == {"captured in memory", "captured out of core", "four partitions", "float64"}
    assert {part.name for part in first if part.captures and not part.eager} == captures - {
        "four partitions", "float64"
    }  # fmt: skip
    assert all("artifact of 1000" in " ".join(part.command) for part in first if part.alike)
    copies = {part.name for part in (*first, *more) if part.forked}
    assert copies == {"memory", "kernels", *gpu_parts.TRAINING, *(f"kernels of {x}.cu" for x in gpu_parts.KERNELS)}
    assert all(part.command[:2] == (sys.executable, "-m") for part in (*first, *more) if part.name in copies)


def test_artifacts_for_epochs_that_are_done_are_not_made_nor_waited_for(tmp_path):
    """On another machine than that of the first call they are not there, and 4 million vertices take the time."""
    options = options_of_calls(tmp_path, 390)
    for undone, small in (("", False), ("gat captured", False), ("gat captured", True)):
        found = SimpleNamespace(options=options, late=[])
        found.done = lambda part, undone=undone: part.name != undone and "artifact of 400" in " ".join(part.command)
        found.artifact = lambda name, seconds, small=small: not small
        parts = [part for step in gpu_parts.first(found) for part in step]
        runs = {size for part in parts if part.alike for size in (400, 1000) if f"of {size}" in part.alike}
        made = [part.name for part in parts if part.name.startswith("artifact")]  # those waited for
        assert made == (["artifact of 400"] if small else []) and len(found.late) == bool(undone)
        assert runs == ({400 if small else 1000} if undone else set())


def test_every_test_of_kernels_beside_a_reference_is_run_for_one_file():
    """So that a kernel that faults fails the part of its file alone."""
    of = {"TestRows": "RowParity", "TestCsc": "CscParity", "TestAttention": "AttentionParity"}
    of |= {"TestDropout": "DropoutParity"}
    every = {f"{test}::{name}" for test in of for name in vars(getattr(kernel_parity, of[test])) if "test_" in name}
    whole = {test: [name for name in every if name.startswith(test)] for test in of}
    run = [name for file in gpu_parts.KERNELS.values() for only in file for name in whole.get(only, [only])]
    assert sorted(run) == sorted(every)


def test_a_line_that_shows_tests_need_not_be_the_last():
    lines = ["==== 3 passed in 2.1s ====", "========= ERROR SUMMARY: 0 errors"]
    assert gpu_results.result_of(lines, " passed") == {"said": "3 passed in 2.1s"}
    assert gpu_results.result_of(lines, "") == {"said": "ERROR SUMMARY: 0 errors"}
    assert gpu_results.result_of([], " passed") == {"said": ""}
    assert gpu_results.result_of(["7", '{"a": 1}', '{"a": 2}', "bye"], "") == {"result": {"a": 2}}


BROKEN = """
import pytest, torch
torch.cuda.is_initialized = lambda: True
state = []
def fail():
    if state:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
torch.cuda.synchronize = fail
@pytest.mark.parametrize("k", range(6))
def test_kernel(k):
    state.extend([k] * (k == 2))
    fail()
"""


@pytest.mark.long(sample=0)
@pytest.mark.parametrize(("workers", "passed"), [((), 2), (("-n", "1"), 5)], ids=["alone", "workers"])
def test_one_fault_of_a_gpu_is_blamed_on_one_test(tmp_path, workers, passed):
    shutil.copy(ROOT / "tests" / "gpu" / "conftest.py", tmp_path)
    (tmp_path / "test_broken.py").write_text(BROKEN)
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", *workers, "test_broken.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # this worker's
    text = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert f" {passed} passed" in text
    assert {line.split()[1] for line in text.splitlines() if line.startswith("FAILED")} == {
        "test_broken.py::test_kernel[2]"
    }


def test_counters_of_the_last_launch_of_each_kernel_are_the_result():
    """Not the rates of a program whose launches are done again for every counter."""
    names = ("Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value")
    found = [("copy", "Limits", "DRAM Throughput", "%", value) for value in ("12.5", "91.25")]
    found += [("copy", "Memory", "Memory Throughput", "Gbyte/s", "2,913.5"), ("copy", "Memory", "Mem Busy", "%", "3")]
    found += [("add", "Limits", "DRAM Throughput", "%", "7"), ("add", "Limits", "Duration", "us", "n/a")]
    table = [",".join(f'"{x}"' for x in row) for row in (names, *found)]
    printed = ["==PROF== Connected", table[0], *table[1:4], '{"rates": {"copy, GB/s": 1.0}}', *table[4:], "7"]
    assert gpu_results.result_of(printed, "")["result"]["rates"] == {
        "copy: DRAM Throughput, %": 91.25, "copy: Memory Throughput, Gbyte/s": 2913.5, "add: DRAM Throughput, %": 7.0
    }  # fmt: skip
    nothing = ["==PROF== Connected", '{"rates": {"copy, GB/s": 1.0}}', "==WARNING== No kernels were profiled."]
    assert gpu_results.result_of(nothing, "") == {"said": nothing[-1]}


STACKS = """Fatal Python error: Aborted

Thread 0x00007f97 [worker] (most recent call first):
  File b.py, line 3 in wait

Current thread 0x00007f98 [python] (most recent call first):
  File a.py, line 46 in synchronize
  File a.py, line 7 in <module>
"""


def test_what_hangs_in_a_test_says_in_which():
    """Of pytest alone, where the line of a test that is under way has no end, and of its workers, which say both."""
    said = ["tests/gpu/a.py::test_a[gcn-in memory] PASSED      [ 50%]", "tests/gpu/a.py::test_a[gat-in memory] "]
    assert gpu_results.reason(None, "\n".join(said), STACKS, "took too long") == (
        "took too long: tests/gpu/a.py::test_a[gat-in memory]: 1 passed: in a.py, line 46 in synchronize"
    )
    said = [
        "tests/a.py::TestB::test_c[1] ",
        "tests/a.py::TestB::test_c[2] ",
        "[gw0] [ 50%] PASSED tests/a.py::TestB::test_c[2] ",
    ]
    assert (
        gpu_results.reason(-11, "\n".join(said), "", "") == "ended by SIGSEGV: tests/a.py::TestB::test_c[1]: 1 passed"
    )
    failed = [
        f"[gw0] [ {k}%] {how} tests/a.py::test_d[{k}] " for k, how in ((1, "FAILED"), (2, "ERROR"), (3, "PASSED"))
    ]
    assert gpu_results.reason(None, "\n".join(failed), "", "took too long") == (
        "took too long: 2 failed, first tests/a.py::test_d[1]: 1 passed"
    )
    assert gpu_results.reason(None, "\n".join([said[0], *failed[1:]]), "", "took too long") == (
        "took too long: tests/a.py::TestB::test_c[1]: 1 failed, first tests/a.py::test_d[2]: 1 passed"
    )
    checked = "tests/a.py::test_d[5] ========= ERROR SUMMARY: 0 errors"  # which a tool ends the line of a test with
    assert gpu_results.reason(134, checked, "", "") == "exit code 134: tests/a.py::test_d[5]"
    alone = "tests/a.py::test_d[4] FAILED      [ 50%]"
    assert gpu_results.reason(-6, alone, "", "") == "ended by SIGABRT: 1 failed, first tests/a.py::test_d[4]"
    over = [said[0], said[2], "[gw1] [100%] SKIPPED tests/a.py::TestB::test_c[1] ", "no more"]
    assert gpu_results.reason(3, "\n".join(over), "", "") == "exit code 3: no more"
    assert gpu_results.reason(None, "", "", "took too long") == "took too long"


def test_a_failure_ends_with_its_error_whatever_torch_says_behind_it():
    traceback, lost = "Traceback (most recent call last):\n  File x\n    y()\n    ~~^\n", '7\n{"losses": []}'
    raised = f"{traceback}torch.AcceleratorError: CUDA error: misaligned address\nCompile with `X` to see more.\n"
    assert gpu_results.reason(1, lost, raised, "") == (
        "exit code 1: torch.AcceleratorError: CUDA error: misaligned address"
    )
    told = (
        f"{raised}\nThe above exception was the direct cause of:\n\n{traceback}hongtu.errors.DeviceOutOfMemory: no room"
    )
    assert gpu_results.reason(1, lost, told, "") == "exit code 1: hongtu.errors.DeviceOutOfMemory: no room"
    assert gpu_results.reason(1, lost, "", "") == "exit code 1: 7"
    assert (
        gpu_results.reason(2, "", "usage: x\nx: error: no such option", "") == "exit code 2: x: error: no such option"
    )


def test_timeline():
    """Two streams and a third: loads end at 8 ms, sums at 10, what leaves takes 1; nothing runs from 4 to 5."""
    ms = 1_000_000
    events = [
        ("copy_rows_f32x4", "7", 0, 2 * ms), ("Memcpy HtoD (Pinned -> Device)", "7", 5 * ms, 8 * ms),
        ("csc_aggregate_f32x4", "13", 2 * ms, 4 * ms), ("csc_aggregate_f32x4", "13", 7 * ms, 10 * ms),
        ("copy_rows_f32x4", "14", 8 * ms, 8 * ms + 1), ("Memcpy DtoH (Device -> Pinned)", "14", 9 * ms, 10 * ms),
    ]  # fmt: skip
    found = gpu_epoch.summary(events)
    assert found["ms"] == 10 and found["idle"] == pytest.approx(0.1)
    assert {name: round(stream["busy"], 3) for name, stream in found["streams"].items()} == {
        "7 load": 0.5, "13 compute": 0.5, "14 flush": 0.1
    }  # fmt: skip
    assert list(found["kernels"]) == [
        "csc_aggregate_f32x4", "Memcpy HtoD (Pinned -> Device)", "copy_rows_f32x4", "Memcpy DtoH (Device -> Pinned)"
    ]  # fmt: skip
    assert found["kernels"]["csc_aggregate_f32x4"] == 5
    assert gpu_epoch.summary([]) == {}
