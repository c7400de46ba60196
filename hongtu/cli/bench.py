"""``hongtu bench ARTIFACT``: time models, budgets, strategies and other systems in turns."""

from __future__ import annotations

import argparse
import os
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hongtu.config import MODELS, BudgetShare, size
from hongtu.errors import BudgetError, InputError

if TYPE_CHECKING:
    from hongtu.bench.compare import Settings
    from hongtu.bench.spec import Model, Run
    from hongtu.graph.artifact import Artifact
    from hongtu.hardware import Hardware
    from hongtu.plan.execution import ExecutionPlan


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    parser.add_argument("artifact", metavar="ARTIFACT", help="directory written by `hongtu preprocess`")
    add = parser.add_argument
    known = ", ".join(MODELS)
    add("--models", type=_names, default=["gcn"], metavar="A,B", help=f"of {known} (default: gcn)")
    add("--hidden", type=int, default=128, help="columns between layers (default: 128)")
    add("--layers", type=int, default=2, help="default: 2")
    add("--strategies", type=_names, default=["full"], metavar="A,B", help="of full, paper, p2p, none, and alone: "
        "the paper's with each saving alone (default: full)")  # fmt: skip
    add("--budgets", type=_names, default=["none"], metavar="A,B", help="device memory per partition: none, sizes like "
        "64MiB, or shares like 25%% of what is needed in memory (default: none)")  # fmt: skip
    add("--ranks", type=_names, default=["1"], metavar="A,B", help="processes that train together, of each "
        "strategy and budget (default: 1)")  # fmt: skip
    add("--dependencies", default="cache", metavar="D", help="of ranks: cache, comm or hybrid (default: cache)")
    add("--baselines", type=_names, default=[], metavar="A,B", help="of pyg, pyg-csr, pyg-sparse, pyg-offload, "
        "dgl, sar (on ranks), dense, and sampled (approximate) pyg-loader and loader; or all: those that can run "
        "here")  # fmt: skip
    add("--epochs", type=int, default=5, help="timed of each, after three that are checked (default: 5)")
    add("--accuracy", type=_length, default=(0, False), metavar="EPOCHS|SECONDSs", help="also train each for so many "
        "epochs (30) or seconds (60s), with scores on the way")  # fmt: skip
    add("--together", action="store_true", help="all systems in one process: they start faster, but the memory of a "
        "process is not measured")  # fmt: skip
    add("--device", default="cpu", help="cpu, cuda, cuda:K, torch-sparse or simulated (default: cpu)")
    add(
        "--hardware", metavar="NAME|FILE", help="profile for planning and for predicted seconds (default: the device's)"
    )
    add("--out", type=Path, metavar="FILE.jsonl", help="append a JSON line for each; those that are there already are "
        "not run again")  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Check everything, then measure model by model; a line for each system as soon as its model is done."""
    from hongtu.bench.compare import Settings
    from hongtu.bench.process import Process
    from hongtu.graph.artifact import open_artifact
    from hongtu.ranks.share import deal_partitions

    check_options(options)
    artifact = open_artifact(options.artifact)
    deal_partitions(artifact, max(map(int, options.ranks)))
    with closing(Process()) if options.together else nullcontext() as process:
        settings = Settings(
            epochs=options.epochs,
            accuracy=options.accuracy[0],
            in_seconds=options.accuracy[1],
            device=options.device,
            hardware=options.hardware,
            process=process,
        )
        measure(options, artifact, settings)


def measure(options: argparse.Namespace, artifact: Artifact, settings: Settings) -> None:
    """Every model that is not done."""
    from tqdm import tqdm

    from hongtu.bench.compare import compare, describe, steps
    from hongtu.bench.records import append, machine, read, table
    from hongtu.bench.spec import Model

    models = [Model(name=name, hidden=options.hidden, layers=options.layers) for name in options.models]
    about = machine("bench", "hongtu") | describe(artifact, settings)
    before = [] if options.out is None else read(options.out)
    done = {_key(row) for row in before if row["loss_agrees"] is not False}
    failed = []
    for model in models:
        here = about | model.to_dict()
        wanted = [found for found in make_runs(options, model, settings) if _key(here | found.to_dict()) not in done]
        refused = {run: refusal for run in wanted if (refusal := _refusal(artifact, model, run, settings)) is not None}
        if refused and len(refused) == len(wanted):
            raise next(iter(refused.values()))
        for run, refusal in refused.items():
            share = f" = {run.budget.percent(refusal.smallest)}" if isinstance(run.budget, BudgetShare) else ""
            smallest = size(refusal.smallest, up=True) + share
            print(f"{model.name}, {run.label}: does not fit: the smallest is {smallest}", flush=True)
        runs = [run for run in wanted if run not in refused]
        if not runs:
            continue
        with tqdm(total=steps(runs, settings), desc=model.name, leave=False) as bar:

            def progress(what: str, bar: Any = bar) -> None:
                bar.set_postfix_str(what, refresh=False)
                bar.update()

            rows = compare([settings.order(artifact.path, model, run) for run in runs], settings, progress)
        least = _least_seconds(artifact, model, settings)
        for row in rows:
            row["least_seconds"] = least
            append(options.out, here | row)
        print(table(model, rows), flush=True)
        failed += [f"{model.name}, {row['label']}" for row in rows if row["loss_agrees"] is False]
    if failed:
        raise RuntimeError(f"the loss is not the reference's: {'; '.join(failed)}; please report this")


def check_options(options: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is."""
    from hongtu.bench.spec import ON_RANKS, parse_budgets, parse_strategies
    from hongtu.hardware import load_hardware
    from hongtu.model.named import MODELS
    from hongtu.train.ranked import DEPENDENCIES

    for name in options.models:
        if name not in MODELS:
            raise InputError(f"--models {name}: expected some of {', '.join(MODELS)}")
    for name, least in (("hidden", 1), ("layers", 1), ("epochs", 1)):
        if getattr(options, name) < least:
            raise InputError(f"--{name} {getattr(options, name)}: expected at least {least}")
    for text in options.ranks:
        if not text.isdecimal() or int(text) < 1:
            raise InputError(f"--ranks {text}: expected numbers of processes, like 1,2,4")
        if int(text) > 1 and options.device != "cpu":
            raise InputError(f"--ranks {text}: ranks are timed on the CPU; leave --device {options.device} out")
    if options.dependencies not in DEPENDENCIES:
        raise InputError(f"--dependencies {options.dependencies}: expected one of {', '.join(DEPENDENCIES)}")
    parse_strategies(options.strategies)
    parse_budgets(options.budgets)
    for name in ON_RANKS:
        if name in options.baselines and set(options.ranks) == {"1"}:
            raise InputError(f"--baselines {name}: runs on ranks alone; give --ranks 2 or more, too")
    for model in options.models:
        _baselines(options.baselines, model)
    if options.hardware is not None:
        load_hardware(options.hardware)
    if options.out is not None:
        parent = options.out.absolute().parent
        if options.out.is_dir() or not parent.is_dir() or not os.access(parent, os.W_OK):
            raise InputError(f"--out {options.out}: expected a file in a directory that exists and can be written to")


def make_runs(options: argparse.Namespace, model: Model, settings: Settings) -> list[Run]:
    """Every strategy in every budget, then the baselines."""
    from hongtu.bench.compare import in_memory_need
    from hongtu.bench.spec import ON_RANKS, Run, parse_budgets, parse_strategies

    budgets = parse_budgets(options.budgets)
    shares = [budget for budget in budgets if isinstance(budget, float)]
    need = in_memory_need(Path(options.artifact), model, settings) if shares else 0
    runs = []
    for strategy, budget, ranks in product(parse_strategies(options.strategies), budgets, map(int, options.ranks)):
        share = budget if isinstance(budget, float) else None
        nbytes = None if budget is None else BudgetShare.of(need, share) if share is not None else int(budget)
        shared = {} if ranks == 1 else {"ranks": ranks, "dependencies": options.dependencies}
        runs.append(Run(strategy=strategy, budget=nbytes, share=share, **shared))
    for name in _baselines(options.baselines, model.name):
        on = [int(ranks) for ranks in options.ranks if int(ranks) > 1] if name in ON_RANKS else [1]
        runs += [Run(system=name, ranks=ranks) for ranks in on]
    return runs


def _refusal(artifact: Artifact, model: Model, run: Run, settings: Settings) -> BudgetError | None:
    """Why a run's budget is too small, before anything is started; None where it is not."""
    from hongtu.bench.spec import OURS

    if run.system != OURS or run.budget is None:
        return None
    try:
        _plan(artifact, model, run, _hardware(settings))
    except BudgetError as error:
        return BudgetError(f"{run.label}: {error}", error.smallest)
    return None


def _least_seconds(artifact: Artifact, model: Model, settings: Settings) -> float | None:
    """Of an epoch of a model, whichever system trains it; None on a simulated device, whose speed is nobody's."""
    from hongtu.bench.profile import least_seconds, measured_rates
    from hongtu.bench.spec import Run

    if settings.device == "simulated":
        return None
    hardware = _hardware(settings)
    plan = _plan(artifact, model, Run(), replace(hardware, device_memory=None))
    return least_seconds(plan, measured_rates(settings.device), hardware.cache)


def _hardware(settings: Settings) -> Hardware:
    """The profile asked for, else the device's."""
    from hongtu.device.backends import get_backend
    from hongtu.hardware import load_hardware

    return load_hardware(settings.hardware) if settings.hardware else get_backend(settings.device).hardware


def _plan(artifact: Artifact, model: Model, run: Run, hardware: Hardware) -> ExecutionPlan:
    """What ours does in a run; of several ranks, the first."""
    from hongtu.bench.spec import named_strategy
    from hongtu.model.loss_terms import DEFAULT
    from hongtu.model.named import build_layers
    from hongtu.train.planning import plan_model, plan_ranks

    layers = build_layers(model.name, artifact.feature_width, model.hidden, artifact.num_classes, model.layers)
    strategy = named_strategy(run.strategy or "full")
    options: dict[str, Any] = {"loss": DEFAULT[artifact.task], "device_memory": run.budget, "strategy": strategy}
    if run.ranks > 1:
        return plan_ranks(artifact, layers, run.ranks, run.dependencies, hardware=hardware, **options)[0][1]
    return plan_model(artifact, layers, hardware=hardware, **options)


def _baselines(names: list[str], model: str) -> list[str]:
    """Those asked for that the model has.

    Raises:
        InputError: for one that was named and cannot run here.
    """
    from hongtu.bench.baselines import FORMS, MODELS, missing

    if names == ["all"]:
        return [name for name in FORMS if missing(name, model) is None]
    for name in names:
        why_not = missing(name, model)
        if why_not is not None and (name not in FORMS or name in MODELS.get(model, ())):
            raise InputError(why_not)
    return [name for name in names if missing(name, model) is None]


KEY = (
    "graph", "vertices", "edges", "partitions", "chunks", "device", "model", "hidden", "layers", "system", "strategy",
    "share", "epochs", "accuracy",
)  # fmt: skip


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two rows the same measurement; bytes count only where no share of memory was asked for."""
    ranks = row.get("ranks", 1)  # rows may be older than these
    shared = ranks, row["dependencies"] if ranks > 1 else None
    return *(row.get(name) for name in KEY), *shared, None if row.get("share") is not None else row.get("budget")


def _length(text: str) -> tuple[int, bool]:
    """A number, and whether it counts seconds.

    >>> _length("30"), _length("60s")
    ((30, False), (60, True))
    """
    number = text.removesuffix("s")
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected epochs (30) or seconds (60s)")
    return int(number), number != text


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
