"""What a comparison found, as lines for people."""

from __future__ import annotations

from typing import Any

from hongtu.bench.host_load import BUSY
from hongtu.bench.spec import Model


def table(model: Model, rows: list[dict[str, Any]]) -> str:
    """Seconds with their spread, memory, both over those of the first row, and where accuracy came to."""
    lines = [f"{model.name}, {model.layers} layers, hidden {model.hidden}; reference {rows[0]['reference']}"]
    first = rows[0]
    for row in rows:
        if "seconds" not in row:
            lines.append(f"  {row['label']:34s} NOT TIMED: losses {row['losses']} are not {row['reference_losses']}")
            continue
        low, high = row["spread"]
        text = f"  {row['label']:34s} {row['seconds']:8.3f} s [{low:.3f}, {high:.3f}]"
        if "seconds" in first:
            text += f" {row['seconds'] / first['seconds']:6.2f}x"
        if row.get("least_seconds"):
            text += f"  {row['least_seconds'] / row['seconds']:4.0%} of the roofline"
        if "process_bytes" in row:
            text += f"  {row['process_bytes'] / 2**20:7.0f} MiB"
        if "bytes" in row:
            text += f"  {host_bytes(row['bytes']) / 2**20:8.0f} MiB over the host link"
        if row.get("curve") and row["curve"][-1].get("val") is not None:
            text += f"  val {row['curve'][-1]['val']:.3f} after {row['curve'][-1]['seconds']:.1f} s"
        lines.append(text + ("" if row["others"] <= BUSY else f"  (others took {row['others']:.0%} of the machine)"))
    return "\n".join(lines)


def host_bytes(moved: dict[str, int]) -> int:
    """Bytes that crossed the host link, structure and plan arrays apart."""
    return sum(moved[link] for link in ("load", "flush", "read", "write"))
