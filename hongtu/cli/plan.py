"""``hongtu plan ARTIFACT``: say what training would move and take, without training."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from hongtu.cli.build import make_layers
from hongtu.cli.info import check_plot, write_plot
from hongtu.cli.plan_counts import GraphCounts, add_counts, describe_counts, read_counts
from hongtu.cli.settings import add_settings, configure
from hongtu.cli.train import add_source, settings_of
from hongtu.cli.train_config import ModelConfig
from hongtu.config import HOST_DTYPES, parse_bytes
from hongtu.errors import InputError

if TYPE_CHECKING:
    from hongtu.graph.artifact import Artifact
    from hongtu.hardware import Hardware
    from hongtu.plan.execution import ExecutionPlan


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    add_source(parser)
    add_settings(parser, ModelConfig)
    add_counts(parser)
    add = parser.add_argument
    add("--ranks", type=int, metavar="K", help="what each of K ranks would hold, fetch and take, and nothing else")
    add("--explain", action="store_true", help="per pass, what it reads, exchanges, writes and keeps")
    add("--plot", metavar="FILE.svg", help="draw rows loaded against cache size")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    add("--listing", nargs="?", const="", metavar="PASS", help="print the program, or one pass of it, and nothing else")
    add("--batch", type=int, metavar="K", help="with --listing: the batch whose rows are shown (default: the first)")


def run(options: argparse.Namespace) -> None:
    """Plan, and print the plan."""
    from hongtu.graph.artifact import open_artifact
    from hongtu.hardware import load_hardware
    from hongtu.plan.program.compile import compile_plan

    if options.batch is not None and options.listing is None:
        raise InputError("--batch: only --listing shows batches; give --listing, too")
    if options.listing is not None and options.json:
        raise InputError("--json: a listing is text; give --listing or --json")
    counts = read_counts(options)
    named = settings_of(options, ModelConfig) if counts is None else {"artifact": options.like or "a graph"}
    config = configure(ModelConfig, options, named)
    hardware = load_hardware(config.hardware or "cpu")
    if counts is not None:
        _run_counts(options, config, counts, hardware)
        return
    if options.plot is not None:
        check_plot(options.plot)
    artifact = open_artifact(config.artifact)
    if options.ranks is not None:
        _run_ranks(options, config, artifact, hardware)
        return
    if config.topology is not None:
        raise InputError("--topology: says what joins ranks; give --ranks, too")
    budget = _budget(config, artifact, hardware)
    if budget is None:
        budget = hardware.memory_for(artifact.topology.partitions)
    plan = _plan(config, artifact, device_memory=budget, hardware=hardware, host_memory=config.host_memory)
    if options.listing is not None:
        from hongtu.plan.program.listing import list_program

        print(list_program(compile_plan(plan), options.listing or None, options.batch), end="")
        return
    result = describe(config, artifact, plan, budget, hardware)
    if options.plot is not None:
        write_plot(options.plot, artifact, plan)
    if options.json:
        print(json.dumps(result))
    else:
        from hongtu.cli.plan_text import explanation, tables

        print(tables(result) + (explanation(result) if options.explain else ""))


def _run_counts(options: argparse.Namespace, config: ModelConfig, counts: GraphCounts, hardware: Hardware) -> None:
    """Plan without a graph."""
    from hongtu.cli.plan_text import counts_table

    of_artifacts = ("ranks", "explain", "plot", "listing")
    _refuse(options, of_artifacts, "needs an artifact, and there are only counts; leave it out")
    partitions = options.partitions or hardware.devices
    result = describe_counts(counts, config, hardware, partitions, partial(_plan, config))
    print(json.dumps(result) if options.json else counts_table(result, _model(config)))


def _refuse(options: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(options, name) not in (None, False):
            raise InputError(f"--{name}: {why}")


def _plan(config: ModelConfig, artifact: Artifact, **limits: Any) -> ExecutionPlan:
    """Of the model on an artifact, in these limits and on this hardware."""
    from hongtu.train.planning import plan_model

    return plan_model(artifact, make_layers(config, artifact), **_options(config, artifact) | limits)


def _options(config: ModelConfig, artifact: Artifact) -> dict[str, Any]:
    """Of a plan, but for the memory that there is and the hardware."""
    from hongtu.model.loss_terms import DEFAULT

    same = {name: getattr(config, name) for name in ("strategy", *HOST_DTYPES)}
    return {"loss": DEFAULT[artifact.task], "spill": config.spill is not None, **same}


def _budget(config: ModelConfig, artifact: Artifact, hardware: Hardware) -> int | None:
    from hongtu.train.settings import budget_bytes

    whole = {"spill": False, **dict.fromkeys(HOST_DTYPES)}  # what no limit would take
    return budget_bytes(
        config.device_memory, lambda limit: _plan(config, artifact, device_memory=limit, hardware=hardware, **whole)
    )


def _run_ranks(options: argparse.Namespace, config: ModelConfig, artifact: Artifact, hardware: Hardware) -> None:
    """Plan for several ranks, without starting any."""
    from hongtu.cli.plan_text import rank_tables
    from hongtu.train.planning import plan_ranks

    if options.ranks < 2:
        raise InputError(f"--ranks {options.ranks}: expected at least 2; leave it out for one process")
    _refuse(options, ("explain", "plot", "listing"), "shows one process's plan; leave --ranks out")
    budget = _budget(config, artifact, hardware)
    plans = plan_ranks(
        artifact, make_layers(config, artifact), options.ranks, config.dependencies, device_memory=budget,
        hardware=hardware, topology=config.topology, host_memory=config.host_memory, **_options(config, artifact),
    )  # fmt: skip
    result = describe_ranks(config, plans, budget, hardware)
    print(json.dumps(result) if options.json else rank_tables(result))


def describe_ranks(
    config: ModelConfig, plans: list[tuple[Any, ExecutionPlan]], budget: int | None, hardware: Hardware
) -> dict[str, Any]:
    """Everything that ``hongtu plan --ranks K --json`` prints."""
    ranks: list[dict[str, Any]] = [
        {
            "held": len(share.rows),
            "own": int(share.owned.sum()),
            "replicas": int(((share.stages >= 2) & ~share.owned).sum()),
            "halo": 0 if share.halo is None else share.halo.rows,
            **_predicted(plan, hardware),
        }
        for share, plan in plans
    ]
    halo = plans[0][0].halo
    return {
        "artifact": config.artifact,
        **_given(config, plans[0][1], budget, hardware),
        "dependencies": config.dependencies,
        "first_fetched": None if halo is None else halo.first,
        "rounds": 0 if halo is None else max(map(len, halo.fetched)),
        "by_vertex": halo is not None and any((share.stages[~share.owned] > halo.first).any() for share, _ in plans),
        "ranks": ranks,
        "seconds_per_epoch": max(rank["seconds_per_epoch"] for rank in ranks),
    }


def _given(config: ModelConfig, plan: ExecutionPlan, budget: int | None, hardware: Hardware) -> dict[str, Any]:
    """What a plan is for."""
    return {
        "model": _model(config),
        "strategy": config.strategy,
        "hardware": hardware.name,
        "device_memory": budget,
        "host_memory": None if config.host_memory is None else parse_bytes(config.host_memory, "host_memory"),
        **{name: getattr(plan.shape, name) or "float32" for name in HOST_DTYPES},
    }


def _predicted(plan: ExecutionPlan, hardware: Hardware) -> dict[str, Any]:
    """What a plan moves, keeps and takes."""
    from hongtu.plan.cost.seconds import predict_seconds

    seconds = predict_seconds(plan, hardware)
    return {
        "rows": plan.rows,
        "bytes": plan.bytes,
        "setup_bytes": plan.setup_traffic.bytes,
        "arena_bytes": plan.arena_bytes,
        "peak_bytes": plan.peak_bytes,
        "spilled": {name: plan.in_memory(name) for name in sorted(plan.spilled)},
        "seconds": seconds.to_dict(),
        "seconds_per_epoch": seconds.total,
    }


def _model(config: ModelConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("model", "modules", "hidden", "layers", "dropout", "heads")}


def describe(
    config: ModelConfig, artifact: Artifact, plan: ExecutionPlan, budget: int | None, hardware: Hardware
) -> dict[str, Any]:
    """Everything that ``hongtu plan --json`` prints."""
    from hongtu.plan.report import ladder, lookahead_summary, pass_report

    volumes = artifact.manifest["volume"]
    order = min(volumes, key=lambda name: volumes[name]["v_ru"])
    lookahead = lookahead_summary(artifact.topology)
    passes = [pass_report(plan, p, hardware) for p in plan.passes.train]
    return {
        "artifact": str(artifact.path),
        **_given(config, plan, budget, hardware),
        "preprocessed": {name: artifact.manifest["settings"].get(name) for name in ("partitioner", "order")},
        "vertices": artifact.num_vertices,
        "partitions": artifact.topology.partitions,
        "chunks": artifact.topology.chunks,
        "grain": plan.topology.chunks,
        "setup_grain": (plan.topology if plan.once is None else plan.once[0]).chunks,
        **_predicted(plan, hardware),
        "capacities": {p["name"]: p["slots"] for p in passes if p["slots"]},
        "ladder_order": order,
        "ladder": ladder(plan, volumes[order], lookahead["rows"], hardware),
        "floor": lookahead["floor"],
        "passes": passes,
        "structure_bytes": [plan.structure_bytes(i) for i in range(plan.topology.partitions)],
        "setup": [pass_report(plan, p, hardware) for p in plan.passes.setup],
    }
