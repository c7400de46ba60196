"""The tables of ``hongtu plan``, from the object that ``--json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hongtu.config import size
from hongtu.metrics import BELOW

_ORDERS = {"input": "input order", "paper": "Algorithm 4's order"}


def _model(model: dict[str, Any]) -> str:
    """What is planned, in a few words."""
    if model["modules"]:
        return f"{len(model['modules'])} modules"
    return model["model"] + ("" if ":" in model["model"] else f", {model['layers']} layers, hidden {model['hidden']}")


def tables(result: dict[str, Any]) -> str:
    """The plan for people."""
    model, budget = result["model"], result["device_memory"]
    grain = result["grain"] * result["partitions"]
    once = "" if result["setup_grain"] == result["grain"] else f"; {result['setup_grain']} for what runs once"
    lines = [
        f"{result['artifact']}: {_model(model)}; strategy "
        f"{result['strategy']}; {'no limit' if budget is None else size(budget)} per device",
        f"  {result['partitions']} partitions x {result['chunks']} chunks, run as {grain} "
        f"({result['grain']} per partition{once})",
        "",
        *_pass_table(result),
        "",
        *_ladder_table(result),
        "",
        *_memory_table(result),
        "",
        *_seconds_lines(result),
    ]
    return "\n".join(lines)


def rank_tables(result: dict[str, Any]) -> str:
    """What every rank holds and does, for people."""
    model, first, seconds = result["model"], result["first_fetched"], result["seconds_per_epoch"]
    where = "nothing is fetched" if first is None else f"what layers exchange is fetched from layer {first} on"
    where += ", or computed again, vertex by vertex" if result["by_vertex"] else ""
    where += f", in {result['rounds']} rounds by way of ranks that read it, too" if result["rounds"] > 1 else ""
    below = [memory for memory in BELOW if any(memory in rank["peak_bytes"] for rank in result["ranks"])]
    header = ("rank", "rows held", "own", "replicas", "halo", "fetched", "sent", "device peak", "host peak")
    rows: list[tuple[str, ...]] = [(*header, *below, "seconds")]
    for number, rank in enumerate(result["ranks"]):
        peaks = rank["peak_bytes"]
        rows.append((
            f"{number}",
            *(f"{rank[name]:,}" for name in ("held", "own", "replicas", "halo")),
            *(size(rank["bytes"][link]) for link in ("fetch", "send")),
            size(max(peak for name, peak in peaks.items() if name.startswith("device"))),
            size(sum(peak for name, peak in peaks.items() if name.endswith("host"))),
            *(size(peaks.get(memory, 0)) for memory in below),
            f"{rank['seconds_per_epoch']:.2g}",
        ))  # fmt: skip
    return "\n".join([
        f"{result['artifact']}: {_model(model)}; strategy "
        f"{result['strategy']}; dependencies {result['dependencies']}: {where}",
        "",
        *_columns(rows),
        *_narrow(result),
        "",
        f"  {seconds:.2g} s per epoch predicted on {result['hardware']}, those of the slowest rank",
    ])  # fmt: skip


def counts_table(result: dict[str, Any], model: dict[str, Any]) -> str:
    """What a graph of these counts takes if it is like each kind of graph, for people."""
    kinds, budget = result["kinds"], result["device_memory"]
    numbers = f"{result['vertices']:,} vertices, {result['edges']:,} edges, {result['features']} features"
    limit = budget if isinstance(budget, str) else "no limit" if budget is None else size(budget)
    rows: list[tuple[str, ...]] = [("if it is like graphs of", *kinds)]
    rows.append(("replication factor", *(f"{kind['replication_factor']:.1f}" for kind in kinds.values())))
    for name in dict.fromkeys(name for kind in kinds.values() for name in kind["peak_bytes"]):
        rows.append((f"{name}, peak", *(size(kind["peak_bytes"].get(name, 0)) for kind in kinds.values())))
    if not all(kind["hubs"] for kind in kinds.values()):
        rows.append(("hubs' in-edges", *("as they are" if kind["hubs"] else "spread" for kind in kinds.values())))
    links = {"host": ("load", "flush", "read", "write", "topology"), "peer": ("pull", "push")}
    links |= {memory: (memory,) for memory in BELOW}
    for link, names in links.items():
        moved = [sum(kind["bytes"][name] for name in names) for kind in kinds.values()]
        if any(moved):
            rows.append((f"{link} link, an epoch", *map(size, moved)))
    seconds = (f"{kind['seconds_per_epoch']:.2g}" for kind in kinds.values())
    rows.append((f"seconds of an epoch on {result['hardware']}", *seconds))
    first = next(iter(kinds.values()))
    return "\n".join([
        f"{result['graph']}: {numbers}, {result['classes']} classes; {_model(model)}; strategy {result['strategy']}; "
        f"{limit} per device, {result['partitions']} partitions",
        f"  planned on graphs of {first['vertices']:,} vertices in as much smaller memories; yours lies between",
        "",
        *_columns(rows),
    ])  # fmt: skip


def explanation(result: dict[str, Any]) -> str:
    """What every pass touches; a star marks what stays on the devices."""
    lines = ["", ""]
    if result["strategy"] in PUBLISHED:
        lines.append(_published(result["strategy"], result["model"]["model"], result["preprocessed"]))
    structure = max(result["structure_bytes"])
    if result["setup"] or structure:
        lines.append("once, before the first epoch (name [columns], * on the devices):")
        if structure:
            lines.append(f"  structure of all chunks, which stays on the devices: up to {size(structure)} each")
        lines += [line for p in result["setup"] for line in _explain(p, result["vertices"])]
    lines.append("passes of an epoch (name [columns], * on the devices):")
    lines += [line for p in result["passes"] for line in _explain(p, result["vertices"])]
    return "\n".join(lines)


PUBLISHED = {
    "none": "the HongTu paper's baseline",
    "p2p": "the HongTu paper's baseline with rows shared between devices",
    "paper": "the HongTu paper's system",
}


PAPERS = ("gcn", "sage", "gin", "commnet", "gat", "ggcn")


def _published(strategy: str, model: str, made: dict[str, str]) -> str:
    """What a strategy of the paper is for a model, on an artifact that was made so."""
    if model not in PAPERS:
        return f"{model} runs in hongtu's own form: the HongTu paper's forms are those of {', '.join(PAPERS)}"
    if made == {"partitioner": "metis", "order": "input"}:
        return f"moves what {PUBLISHED[strategy]} does"
    options = " ".join(f"--{name} {value}" for name, value in made.items())
    return (
        f"{PUBLISHED[strategy]} is this on an artifact of `hongtu preprocess --as-paper` (--partitioner metis --order "
        f"input --chunks N); this one has {options}"
    )


def _explain(p: dict[str, Any], vertices: int) -> list[str]:
    some = "" if p["vertices"] == vertices else f" ({p['vertices']:,} of {vertices:,} vertices: what the loss needs)"
    lines = [f"  {p['name']}: {_does(p)}{some}"]
    rows = p["rows"]
    details = {
        "exchanges": f"  loads {rows['load']:,} rows, pulls {rows['pull']:,}",
        "flushes": f"  flushes {rows['flush']:,} rows, pushes {rows['push']:,}",
        "gathers": "  mean and variance of all rows",
    }
    for verb, names in (
        ("exchanges", p["exchanges"]),
        ("reads", p["reads"]),
        ("checkpoints", p["checkpoint"]),
        ("writes", p["writes"]),
        ("gathers", p["gathers"]),
        ("adds to", p["adds"]),
        ("flushes", p["flushes"]),
        ("creates", p["creates"]),
        ("frees", p["frees"]),
    ):
        if names:
            stars = {name: " *" if name in p["resident"] else "" for name in names}
            listed = ", ".join(f"{name} [{columns}]{stars[name]}" for name, columns in names.items())
            lines.append(f"    {verb:<12}{listed}{details.get(verb, '')}")
    return lines


def _does(p: dict[str, Any]) -> str:
    stage = f"stage {p['stage']} (the update behind it and the next transform)"
    if p["aggregate"] is None:
        of = "" if p["direction"] == "forward" else "gradient of "
        return f"{of}stage 0, the transform of layer 0, on each chunk's own rows"
    layer = p["aggregate"]
    if p["normalises"]:
        return _normalises(p, stage)
    if p["direction"] == "fused":
        return f"aggregate of layer {layer}, the last stage, the loss, and their gradients, chunk by chunk"
    if p["direction"] == "forward":
        if p["stage"] is None:
            return f"aggregate of layer {layer}, which is the same in every epoch"
        first = f"aggregate of layer {layer}, then" if p["exchanges"] else f"from the aggregate of layer {layer},"
        return f"{first} {stage}{', which stays until backward' if p['saves'] else ''}"
    if p["saves"]:
        return f"gradients of {stage} and of the aggregate of layer {layer}, from what forward left"
    how = "its checkpoint" if not p["exchanges"] else "its neighbours, aggregated again"
    return f"{stage} again from {how}, then gradients of both and of the aggregate"


def _normalises(p: dict[str, Any], stage: str) -> str:
    what = f"normalisation {p['aggregate']} by the statistics of all rows"
    if p["direction"] == "fused":
        return f"{what}, the last stage, the loss, and their gradients, chunk by chunk"
    if p["direction"] == "forward":
        return f"{what}, then {stage}{', which stays until backward' if p['saves'] else ''}"
    return f"gradients of {what} and of {stage}, {'from what forward left' if p['saves'] else 'which run again'}"


def _columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Aligned text: the first column to the left, the others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        indent + "  ".join(cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths)))
        for row in rows
    ]


def _pass_table(result: dict[str, Any]) -> list[str]:
    v = result["vertices"]
    header = ("pass", "host rows", "/ |V|", "host link", "peer rows", "peer link", "own rows", "structure", "slots",
              "device peak", "seconds")  # fmt: skip
    below = [memory for memory in BELOW if result["bytes"][memory]]
    rows = [(*header, *below)]
    epoch = {"name": "epoch", "slots": [], "arena_bytes": {}, "seconds": result["seconds_per_epoch"]}
    for p in [*result["passes"], epoch | {"rows": result["rows"], "bytes": result["bytes"]}]:
        moved, count = p["bytes"], p["rows"]
        host = count["load"] + count["flush"]
        peak = max(p["arena_bytes"].values(), default=0) + (p.get("workspace_bytes") or 0)
        rows.append((
            p["name"],
            f"{host:,}",
            f"{host / v:.2f}",
            size(moved["load"] + moved["flush"]),
            f"{count['pull'] + count['push']:,}",
            size(moved["pull"] + moved["push"]),
            size(moved["read"] + moved["write"]),
            size(moved["topology"]),
            _range(p["slots"]),
            size(peak) if peak else "",
            f"{p['seconds']:.2g}",
            *(size(moved[memory]) for memory in below),
        ))  # fmt: skip
    return _columns(rows)


def _range(slots: Sequence[int]) -> str:
    """Slots of a device, or of the smallest and the largest."""
    if not slots:
        return ""
    return f"{min(slots):,}" if min(slots) == max(slots) else f"{min(slots):,}-{max(slots):,}"


def _ladder_table(result: dict[str, Any]) -> list[str]:
    v = result["vertices"]
    rows = [("rows loaded per pass", "rows", "/ |V|", "host link per epoch", "Equation 4, s")]
    for rung in result["ladder"]:
        numbers = (f"{rung['rows']:,}", f"{rung['rows'] / v:.2f}", size(rung["bytes"]), f"{rung['seconds']:.2g}")
        rows.append((rung["name"], *numbers))
    rows.append(("floor: every row read, once", f"{result['floor']:,}", f"{result['floor'] / v:.2f}", "", ""))
    host, loads_all = result["bytes"]["load"] + result["bytes"]["flush"], result["ladder"][0]
    mean = host * loads_all["rows"] / max(loads_all["bytes"], 1)
    rows.append(("this plan, mean of its passes", f"{mean:,.0f}", f"{mean / v:.2f}", size(host), ""))
    note = (
        f"  (with {result['chunks']} chunks a partition; the paper's in {_ORDERS[result['ladder_order']]}, lookahead "
        "in input order in as much memory)"
    )
    return [*_columns(rows), note]


def _memory_table(result: dict[str, Any]) -> list[str]:
    budget, host = result["device_memory"], result["host_memory"]
    rows = [("memory", "planned", "peak", "of")]
    for name, planned in result["arena_bytes"].items():
        limit = size(budget) if budget is not None and name.startswith("device") else ""
        rows.append((name, size(planned), size(result["peak_bytes"][name]), limit))
    lines = _columns(rows)
    lines += _narrow(result)
    if host is not None:
        lines.append(f"  (what the host keeps, within its limit of {size(host)}; on the disk: {_spilled(result)})")
    if budget is None:
        lines.append("  (without a limit the layers' own tensors are not bounded and come on top)")
    return lines


def _narrow(result: dict[str, Any]) -> list[str]:
    kept = {"host_dtype": "features and what layers give forward", "gradient_dtype": "gradients of what layers give"}
    return [
        f"  (the host keeps {what} in {result[name]}: not exact)"
        for name, what in kept.items()
        if result[name] != "float32"
    ]


def _spilled(result: dict[str, Any]) -> str:
    kept = {name: f" (but {rows:,} rows)" if rows else "" for name, rows in result["spilled"].items()}
    return ", ".join(f"{name}{but}" for name, but in kept.items()) or "nothing"


def _seconds_lines(result: dict[str, Any]) -> list[str]:
    total, seconds = result["seconds_per_epoch"], dict(result["seconds"])
    hidden = -seconds.pop("hidden")
    parts = ", ".join(f"{name} {part:.2g}" for name, part in seconds.items() if part > total / 1000)
    overlapped = f"{hidden:.2g} s of the parts overlapped" if hidden > 0 else "nothing overlapped"
    return [f"  {total:.2g} s per epoch predicted on {result['hardware']}, {overlapped}: {parts}"]
