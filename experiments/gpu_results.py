"""What parts of a GPU check have printed, as rows and for people."""

from __future__ import annotations

import csv
import json
import re
import signal
from contextlib import suppress
from typing import Any

WHERE = re.compile(r"^Current thread 0x\w+.*\(most recent call first\):\n  File (.*)", re.MULTILINE)
WARNED = re.compile(r"(?:User|Runtime)Warning: (.*)")
# an error, and not what torch says behind it
RAISED = re.compile(r"^Traceback \(most recent call last\):\n(?: .*\n)+(\S.*)", re.MULTILINE)
COUNTERS = ("Duration", "DRAM Throughput", "Memory Throughput", "L2 Hit Rate", "Achieved Occupancy")  # as `ncu` says
# how pytest says that a test is; a tool's sum of errors is none
OVER = re.compile(r"\b(?:PASSED|FAILED|ERROR|SKIPPED)\b(?! SUMMARY)")
TEST = re.compile(rf"tests/\S+::.+?(?= +{OVER.pattern}| +=====| *$)")


def result_of(lines: list[str], shows: str) -> dict[str, Any]:
    """What `ncu` has counted, or else the last JSON object, or of what was printed the last line, or the last that
    shows something."""
    if counted := counters(lines):
        return {"result": {"rates": counted}}
    if profiled := [text for text in lines if text.startswith(("==PROF==", "==WARNING==", "==ERROR=="))]:
        return {"said": profiled[-1]}  # rates of a program under `ncu` are no result
    found: dict[str, Any] = {}
    for text in lines:
        with suppress(ValueError):
            read = json.loads(text)
            found = {"result": read} if isinstance(read, dict) else found
    telling = [text for text in lines if shows and shows in text] or lines[-1:]
    return found or {"said": telling[-1].strip("= ") if telling else ""}


def counters(lines: list[str]) -> dict[str, float]:
    """Of the last launch of each kernel, in the table of `ncu --csv`, how near it comes to the GPU's limits."""
    start = next((k for k, text in enumerate(lines) if '"Metric Name"' in text), len(lines))
    found = {}
    for row in csv.DictReader(text for text in lines[start:] if text.startswith('"')):
        if row["Metric Name"] in COUNTERS:
            with suppress(ValueError):
                name = f"{row['Kernel Name']}: {row['Metric Name']}, {row['Metric Unit']}"
                found[name] = float(row["Metric Value"].replace(",", ""))
    return found


def reason(code: int | None, printed: str, errors: str, ended: str) -> str:
    """Why a part failed: the tests that did, or how it ended, with the tests that were under way, how many had failed
    and passed, and the line of Python at which it was, or else its last words."""
    lines = printed.splitlines()
    failed = [text for text in lines if text.startswith(("FAILED ", "ERROR "))]
    if failed:
        return f"{len(failed)} failed, first {failed[0][:300]}"
    tests = {found[0]: OVER.search(text) for text in lines if (found := TEST.search(text))}
    last = [test for test, over in tests.items() if not over][:3]
    over = {test: found[0] for test, found in tests.items() if found}
    wrong = [test for test, how in over.items() if how in ("FAILED", "ERROR")]
    last += [f"{len(wrong)} failed, first {wrong[0]}"] if wrong else []
    passed = [*over.values()].count("PASSED")
    last += [f"{passed} passed"] if passed and last else []
    last += [f"in {found[1]}" for found in [WHERE.search(errors)] if found]
    said = [text for text in (*lines, *errors.splitlines()) if text.strip() and not text.startswith("{")]
    last = last or (RAISED.findall(errors) or said)[-1:]
    if code is not None:
        ended = f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
    return ": ".join([ended, *(text[:300] for text in last)])


def line(row: dict[str, Any]) -> str:
    """One part for people."""
    text = f"{row['part']:24s} {row['status']:13s} {row.get('seconds', 0):6.1f} s  "
    result = row.get("result", {})
    if "seconds" in result:
        text += f"{result['seconds']:.4f} s an epoch, allocated {result['allocated'] / 2**30:.2f} GiB; "
    if "captured" in result:
        text += f"captured: {result['captured']}, slab: {result['slab']}, scripts: {result['scripts']}; "
    text += f"measuring {result['measuring']}: " if "measuring" in result else ""
    words = ("note", "why") if row.get("said", "") in row.get("why", "") else ("note", "why", "said")
    text += "  ".join([*(row[key] for key in words if row.get(key)), *row.get("warned", [])[:1]])
    rates = result.get("rates", {})
    return "".join([text, *(f"\n    {name:48s} {value:10.3f}" for name, value in rates.items())]).rstrip()
