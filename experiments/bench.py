"""``make bench``: every number that the README and the report show, in one go, with limits on time.

    make bench [OUT=DIR]        (python -m experiments.bench --out DIR [--work DIR])

Writes DIR/*.jsonl, DIR/report.html and what each part printed. Parts that are done are not run again. Real graphs take
part where HONGTU_DATA names a directory that has them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from experiments.gpu_parts import Part
from experiments.gpu_processes import run_all
from experiments.prepare import generated, prepared, real_graph
from hongtu.bench.baselines import missing
from hongtu.bench.records import append, machine
from hongtu.cli.stopping import stoppable

PYTHON = sys.executable
SMALL, LARGE = 40_000, 100_000  # vertices of generated graphs
ARXIV = (  # model, layers, hidden columns, torch_geometric's faster form, budgets
    ("gcn", 2, 256, "pyg-csr", "none,10%,5%"),
    ("sage", 3, 256, "pyg-csr", "none"),
    ("gat", 2, 128, "pyg", "none,25%"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    parser.add_argument("--work", type=Path, help="graphs and artifacts (default: OUT/work)")
    parser.add_argument("--scale", type=float, default=1.0, help="of all graphs' sizes (default: 1)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="PART")
    options = parser.parse_args()
    options.work = options.work or options.out / "work"
    options.work.mkdir(parents=True, exist_ok=True)
    with stoppable():
        failed = run_parts(options)
    if failed:
        sys.exit(f"bench: failed: {', '.join(failed)}; see {options.out}/*.log")


def run_parts(options: argparse.Namespace) -> list[str]:
    """Run what is not done; the parts that failed."""
    began, failed = time.monotonic(), []
    prepare(options)
    for part in parts(options):
        if options.only is not None and part.name not in options.only:
            continue
        done = options.out / "done" / part.name
        if done.exists():
            print(f"{part.name}: done before", flush=True)
            continue
        start = time.monotonic()
        code = run_part(part, options.out)
        print(f"{part.name}: {time.monotonic() - start:.0f} s{'' if code == 0 else f', FAILED ({code})'}", flush=True)
        if code == 0:
            done.parent.mkdir(exist_ok=True)
            done.touch()
        else:
            failed.append(part.name)
    print(f"{time.monotonic() - began:.0f} s in all; {options.out / 'report.html'}", flush=True)
    return failed


def prepare(options: argparse.Namespace) -> None:
    """The graphs that several parts share, and what preprocessing them took."""
    for name, kind, vertices, settings in (
        ("citation", "citation", SMALL, {"partitions": 1, "chunks": 64, "order": "clusters"}),
        ("rmat", "rmat", SMALL, {"partitions": 2, "chunks": 32, "order": "input"}),
        ("citation-large", "citation", LARGE, {"partitions": 1, "chunks": 256, "order": "clusters"}),
    ):
        path = options.work / f"{name}.artifact"
        if not path.exists():
            artifact = prepared(generated(options.work, kind, int(vertices * options.scale)), path, **settings)
            stages = [json.loads(line) for line in (path / "stages.jsonl").read_text().splitlines()]
            row = {"graph": name, "vertices": artifact.num_vertices, "edges": artifact.topology.num_edges}
            row["stages"] = {stage["stage"]: stage["seconds"] for stage in stages}
            append(options.out / "preprocess.jsonl", machine("preprocess", "make bench") | row)
    arxiv = real_graph("ogbn-arxiv")
    if arxiv is not None:
        path = options.work / "ogbn-arxiv.artifact"
        prepared(arxiv, path, undirected=True, features="random:128", partitions=1, chunks=64)


def parts(options: argparse.Namespace) -> list[Part]:
    """What is measured, in this order."""
    out, work, epochs = options.out, options.work, str(options.epochs)
    large = str(work / "citation-large.artifact")
    profile, citation, rmat = str(out / "cpu.json"), str(work / "citation.artifact"), str(work / "rmat.artifact")
    sizes = [str(int(size * options.scale)) for size in (250_000, 500_000, 1_000_000, 2_000_000)]

    def to(name: str) -> tuple[str, str]:
        return "--out", str(out / f"{name}.jsonl")

    def hongtu(*words: str) -> tuple[str, ...]:
        return (PYTHON, "-m", "hongtu", *words)

    def module(name: str, *words: str) -> tuple[str, ...]:
        return (PYTHON, "-m", f"experiments.{name}", *words)

    model = ("--hidden", "64", "--epochs", epochs)
    found = [
        Part("estimator", module("estimator", "--work", str(work), "--profile", profile, "--vertices",
                                 str(int(60_000 * options.scale)), *to("estimator")), 900),
        Part("systems", hongtu("bench", citation, "--models", "gcn,sage", *model, "--strategies", "full,paper,none",
                               "--baselines", "all", "--together", *to("bench")), 900),
        Part("gat", hongtu("bench", citation, "--models", "gat", *model, "--baselines",
                           _installed("gat", "pyg", "dgl", "dense"), "--together", *to("bench")), 600),
        Part("savings", hongtu("bench", rmat, "--models", "gcn", "--hidden", "64", "--epochs", "1", "--strategies",
                               "full,paper,alone", "--together", *to("bench")), 360),
        Part("accuracy", hongtu("bench", citation, "--models", "sage", "--hidden", "64", "--epochs", "1",
                                "--accuracy", "30", "--baselines", "pyg-csr", "--together", *to("bench")), 600),
        Part("budgets", hongtu("bench", large, "--models", "gcn,sage", *model, "--budgets", "100%,50%,25%,10%,5%",
                               "--hardware", profile, "--together", *to("budgets")), 600),
        Part("growth", module("growth", "--work", str(work), "--sizes", *sizes, *to("growth")), 720),
        Part("traffic", module("traffic", citation, rmat, *to("traffic")), 180),
        Part("ladder", module("ladder", str(work / f"citation-{int(SMALL * options.scale)}"), "--work",
                              str(work / "ladder"), "--hidden", "64", *to("ladder")), 360),
        Part("paper", module("paper", "--work", str(work), "--results", str(out), "--vertices",
                             str(int(20_000 * options.scale)), *to("paper")), 360),
        Part("report", module("page", str(out), "-o", str(out / "report.html")), 180),
    ]  # fmt: skip
    if (work / "ogbn-arxiv.artifact").exists():
        for at, (name, layers, hidden, form, budgets) in enumerate(ARXIV, start=2):
            wanted = ("--models", name, "--layers", str(layers), "--hidden", str(hidden), "--epochs", epochs)
            baselines = ("--budgets", budgets, "--baselines", _installed(name, form, "dgl", "dense"))
            arxiv = hongtu("bench", str(work / "ogbn-arxiv.artifact"), *wanted, *baselines, *to("bench"))
            found.insert(at, Part(f"arxiv-{name}", arxiv, 600))
    return found


def _installed(model: str, *names: str) -> str:
    """Of these baselines those that can run a model here."""
    return ",".join(name for name in names if missing(name, model) is None)


def run_part(part: Part, out: Path) -> int | None:
    """Run a part within its limit; None when it took too long."""
    with open(out / f"{part.name}.txt", "w") as stdout, open(out / f"{part.name}.log", "w") as stderr:
        return run_all(part.command, stdout, stderr, part.limit)


if __name__ == "__main__":
    main()
