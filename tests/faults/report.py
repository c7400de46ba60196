"""Keeps outcomes, and writes the table of docs/reliability.md from the newest of each fault."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path

from hongtu.bench import records
from tests.faults.outcome import Outcome

RESULTS = Path("experiments/results/reliability.jsonl")
DAMAGED = "damaged "
BEGIN, END = "<!-- written by python -m tests.faults -->", "<!-- end -->"


def keep(outcome: Outcome, command: list[str], path: Path = RESULTS) -> None:
    """Append an outcome and what it ran on."""
    row = records.machine("reliability") | {"command": shlex.join(command)} | asdict(outcome)
    records.append(path, row)


def write_report(document: Path, path: Path = RESULTS) -> None:
    """Put the table between the two marks of the document."""
    newest = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        newest[row["fault"]] = row
    text = document.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    document.write_text(f"{before}{BEGIN}\n\n{table(joined(list(newest.values())))}\n{END}{after}")


def joined(rows: list[dict]) -> list[dict]:
    """One row of all that damage something else and expect the same of it, where the first of them stands, with the
    numbers added up and what was damaged named; seeds that all of them have stay.
    """
    found: dict[str, list[dict]] = {}
    for row in rows:
        same = f"damaged: {row['expected']}" if row["fault"].startswith(DAMAGED) else row["fault"]
        found.setdefault(same, []).append(row)
    return [of[0] if len(of) == 1 else _sum(of) for of in found.values()]


def _sum(rows: list[dict]) -> dict:
    counts = [re.fullmatch(r"(.*?); (\d+) were read, (\d+) refused", row["note"]) for row in rows]
    notes = {row["note"] for row in rows}
    if all(counts):
        notes = {count[1] for count in counts if count}
        read, refused = (sum(int(count[k]) for count in counts if count) for k in (2, 3))
        notes.add(f"{read:,} were read, {refused:,} refused")
    damaged = ", ".join(sorted(row["fault"].removeprefix(DAMAGED) for row in rows))
    return rows[0] | {
        "fault": f"{DAMAGED}inputs of {len(rows)} readers: {damaged}",
        "tries": sum(row["tries"] for row in rows),
        "losses": [loss for row in rows for loss in row["losses"]],
        "note": "; ".join(sorted(notes, reverse=True)),
    }


def table(rows: list[dict]) -> str:
    """In Markdown, with what the rows ran on."""
    lines = ["| fault | expected outcome | trials | failures | seeds and counts |", "|---|---|---:|---:|---|"]
    for row in rows:
        cells = (row["fault"], row["expected"], f"{row['tries']:,}", f"{len(row['losses']):,}", row["note"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    tries, losses = (sum(count) for count in zip(*((row["tries"], len(row["losses"])) for row in rows)))
    lines.append(f"| **all** | | **{tries:,}** | **{losses:,}** | |")
    ran_on = sorted({f"Python {row['python']}, torch {row['torch']}, {row['cores']} cores" for row in rows})
    return "\n".join([*lines, "", f"Ran on {'; '.join(ran_on)}.", ""])
