"""The settings of a training run: what `hongtu train` and `plan` take as options, a run file says and a run keeps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from hongtu.config import HITS, LINK_METRICS, LOSSES, METRICS, MODELS
from hongtu.errors import InputError, nearest

_LEAST = {
    "epochs": 1, "eval_every": 0, "save_every": 0, "keep": 1, "seed": 0, "lr": 0, "weight_decay": 0,
    "label_smoothing": 0, "clip_grad_norm": 0, "negatives": 1, "patience": 1, "rank_timeout": 1,
}  # fmt: skip
_MOST = {"seed": 2**63 - 1, "label_smoothing": 1, "rank_timeout": 10**6}


@dataclass(kw_only=True, frozen=True)
class ModelConfig:
    """The model, and how it is planned.

    Attributes:
        artifact: directory written by `hongtu preprocess`
        model: gcn, sage, gin, commnet, gat, ggcn, gatv2, transformer, pna, sgc, appnp, gine or rgcn; or module:function
            of your own, which is given the opened artifact and returns a list of layers or a torch_geometric model
        modules: instead of a model the layers one by one, of hongtu.nn and torch.nn, such as "GCNConv(features, 64)"
            "ReLU()" "GCNConv(64, classes)"
        hidden: columns between layers, over all heads
        layers: how many; for sgc hops, for appnp linear maps
        dropout: before every layer; also of attention
        heads: attention heads of gat, gatv2 and transformer
        device_memory: bytes per partition, like 2GiB, or a share of what is likely to be held without a limit, like
            25%; not set: no limit (`plan`: what the hardware has, less a margin)
        host_dtype: bf16: the host keeps features and what layers give forward in bfloat16, and links to devices carry
            that: half the bytes, not exact
        gradient_dtype: bf16: the same of gradients of what layers give
        host_memory: bytes of all that the run keeps on the host, like 8GiB; not set: what there is
        spill: directory for vertex rows that --host-memory cannot hold; `plan` only says what would lie there
        strategy: full: every saving; paper: what the HongTu paper does; p2p: that without reuse between batches; none:
            without sharing between devices, too
        dependencies: of ranks, where what they read of one another comes from: cache: they compute it again; comm: they
            fetch it; hybrid: they fetch it from the layer on that is predicted best
        topology: of ranks, a JSON file that says what joins them; not set: the links of their hosts (`plan`: a host of
            its own for each)
        hardware: what plans are compared for: cpu, a100x4, a5000, h200 or a profile (default: the device's; `plan`:
            cpu)
    """

    artifact: str = ""
    model: str = "gcn"
    modules: tuple[str, ...] = ()
    hidden: int = 128
    layers: int = 2
    dropout: float = 0.0
    heads: int = 1
    device_memory: str | None = None
    host_dtype: Literal["float32", "bfloat16", "bf16"] = "float32"
    gradient_dtype: Literal["float32", "bfloat16", "bf16"] = "float32"
    host_memory: str | None = None
    spill: str | None = None
    strategy: Literal["full", "paper", "p2p", "none"] = "full"
    dependencies: Literal["cache", "comm", "hybrid"] = "cache"
    topology: str | None = None
    hardware: str | None = None

    def __post_init__(self) -> None:
        if not self.artifact:
            raise InputError("artifact: missing; give the directory that `hongtu preprocess` wrote, or a run file")
        check_name("model", self.model, MODELS)


def check_name(title: str, given: str | None, known: tuple[str, ...]) -> None:
    """Refuse what is neither a known name nor module:function, with the nearest name."""
    if given is not None and given not in known and ":" not in given:
        raise InputError(
            f"{title} {given!r}{nearest(given, known)}; expected one of {', '.join(known)}, or module:function of your "
            "own"
        )


@dataclass(kw_only=True, frozen=True)
class TrainConfig(ModelConfig):
    """A run.

    Attributes:
        epochs: epochs to train, those of a resumed run included
        optimizer: one of torch.optim, with arguments, such as "SGD(momentum=0.9)"
        lr: learning rate
        weight_decay: of the optimizer
        scheduler: one of torch.optim.lr_scheduler, such as "CosineAnnealingLR(200)", stepped once per epoch
        loss: cross_entropy, bce_with_logits, mse, l1, huber or smooth_l1, or module:function of your own, of outputs
            and labels; not set: cross_entropy, bce_with_logits for multi-label, mse for regression, LinkLoss() for
            links
        negatives: of links, how many pairs that are none are drawn for every edge, anew in every epoch
        corrupt: of links, what these have anew of their edge: its destination, or both ends
        class_weights: balanced: weigh every class by how few train vertices it has
        label_smoothing: of cross_entropy
        clip_grad_norm: clip the gradient's total norm to this
        metric: accuracy, f1 (of class 1 of two, else micro), macro-f1 or auc (of links auc, mrr or hits@K), or
            module:function of your own, of outputs and labels; not set: accuracy, micro-F1 for multi-label, R2 for
            regression, AUC for links
        seed: of initial parameters and dropout
        device: cpu, cuda (all GPUs), cuda:K, torch-sparse (the CPU with its products), or simulated (CUDA's engine on
            the CPU)
        deterministic: refuse operations whose result may differ from run to run
        on_oom: when layers take more device memory than when they were planned: stop, or run the epoch again with
            smaller groups of chunks
        eval_every: evaluate every so many epochs and at the end
        patience: stop after so many evaluations without a better validation score
        keep_best: keep the snapshot of the best validation score, best.pt
        restore_best: end with the weights of the best validation score
        rank_timeout: seconds that a rank waits for another; longer than the slowest takes for an epoch or to plan
        run: directory for epochs.jsonl, snapshot-EPOCH.pt and options.json
        loggers: of hongtu.callbacks, such as "CSVLogger('epochs.csv')" "WandbLogger(project='papers', mode='offline')"
        save_every: write a snapshot every so many epochs and at the end; 0: never
        keep: snapshots to keep
        resume: continue the run in its directory from its newest snapshot, or begin where there is none
    """

    epochs: int = 50
    optimizer: str = "Adam"
    lr: float = 0.01
    weight_decay: float = 0.0
    scheduler: str | None = None
    loss: str | None = None
    negatives: int = 1
    corrupt: Literal["destination", "both"] = "destination"
    class_weights: Literal["balanced"] | None = None
    label_smoothing: float = 0.0
    clip_grad_norm: float | None = None
    metric: str | None = None
    seed: int = 0
    device: str = "cpu"
    deterministic: bool = False
    on_oom: Literal["raise", "replan"] = "raise"
    eval_every: int = 10
    patience: int | None = None
    keep_best: bool = False
    restore_best: bool = False
    rank_timeout: int = 1800
    run: str | None = None
    loggers: tuple[str, ...] = ()
    save_every: int = 10
    keep: int = 3
    resume: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("loss", self.loss, LOSSES)
        if self.metric is not None and not HITS.fullmatch(self.metric):
            check_name("metric", self.metric, tuple(dict.fromkeys(METRICS + LINK_METRICS)))
        for name, least in _LEAST.items():
            value = getattr(self, name)
            most = _MOST.get(name, 10**18)
            if value is not None and not least <= value <= most:
                option = f"--{name.replace('_', '-')}"
                raise InputError(
                    f"{option} {value}: expected {f'at least {least}' if not value > most else f'at most {most}'}"
                )
        for name in ("resume", "keep_best"):
            if getattr(self, name) and self.run is None:
                raise InputError(f"--{name.replace('_', '-')} needs --run DIR, the directory of the run")


# what does not change which numbers come out
_ELSEWHERE = {
    "artifact", "epochs", "device_memory", "host_memory", "spill", "strategy", "dependencies", "topology", "hardware",
    "device", "deterministic", "on_oom", "rank_timeout", "eval_every", "patience", "keep_best", "restore_best", "run",
    "loggers", "save_every", "keep", "resume",
}  # fmt: skip
DECIDING = tuple(field.name for field in fields(TrainConfig) if field.name not in _ELSEWHERE)
