"""The Trainer: exact full-graph training of a list of layers on an artifact, within a device-memory budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from hongtu.artifact import Artifact, open_artifact
from hongtu.config import parse_bytes
from hongtu.device import CpuDevice
from hongtu.embedding import NAME, Embedding
from hongtu.errors import InputError
from hongtu.executor import Executor
from hongtu.host_memory import check_host, drop_pages, reuse_freed_memory
from hongtu.host_rows import make_host
from hongtu.losses import VertexLoss, score
from hongtu.metrics import EpochLog, EpochRecord, Traffic
from hongtu.network import Network, as_modules
from hongtu.nn.context import RowContext
from hongtu.plan.hardware import CPU, Hardware
from hongtu.plan.passes import FEATURES, gradient
from hongtu.plan.strategy import Strategy, get_strategy
from hongtu.planning import OptimizerFactory, adam, make_loss, plan_network
from hongtu.snapshot import check_identity, read_snapshot, write_snapshot


class Trainer:
    """Trains ``layers`` on the whole graph of an artifact: full neighbourhoods, the exact gradient.

    Args:
        artifact: an opened artifact or its path.
        layers: graph layers (:class:`hongtu.nn.Layer`) with row-wise ``torch.nn`` modules anywhere between them.
        loss: "cross_entropy", "bce_with_logits", or a callable (out [T, C], target) -> per-vertex losses [T].
        optimizer: called with the parameters; returns any torch optimizer that steps without a closure.
        device: "cpu".
        device_memory: bytes per partition (or "2GiB"): all that the run keeps on one device; None for no limit.
        strategy: "full", "paper", "none" or a :class:`~hongtu.plan.strategy.Strategy`.
        seed: of dropout; parameters are never reinitialised.
        dtype: torch.float32, or torch.float64 for checks.
        scheduler: called with the optimizer; returns a torch learning-rate scheduler, which ``fit`` steps once per
            epoch (ReduceLROnPlateau: with the validation score at each regular evaluation, or with the loss every
            epoch where ``fit`` does not evaluate).
        clip_grad_norm: clip the gradient's total norm to this before each step.
        embedding_optimizer: as ``optimizer``, for the embeddings of an artifact made with ``features="embedding:D"``;
            it runs on the host. Default: ``optimizer``.
        hardware: the profile by which the planner compares plans (``hongtu plan --hardware``).

    Attributes:
        model: ModuleList of the layers.
        plan: the :class:`~hongtu.plan.execution.ExecutionPlan`: predicted rows, bytes per link, peak bytes.
        embedding: the learned rows (:class:`~hongtu.embedding.Embedding`), or None.
        setup: record of what ran once before the first epoch, or None before it.
        epoch: epochs trained so far.

    Raises:
        InputError: for anything that cannot work, before any work.
        BudgetError: when the budget is too small; names the smallest that works.
    """

    def __init__(
        self,
        artifact: Artifact | str | os.PathLike[str],
        layers: Sequence[nn.Module],
        *,
        loss: str | VertexLoss = "cross_entropy",
        optimizer: OptimizerFactory = adam,
        device: str = "cpu",
        device_memory: int | str | None = None,
        strategy: str | Strategy = "full",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        clip_grad_norm: float | None = None,
        embedding_optimizer: OptimizerFactory | None = None,
        hardware: Hardware = CPU,
    ) -> None:
        self.artifact = artifact if isinstance(artifact, Artifact) else open_artifact(artifact)
        if device != "cpu":
            raise InputError(f"device {device!r}: this version runs on 'cpu' only")
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"dtype {dtype}: expected torch.float32 or torch.float64")
        self.strategy = get_strategy(strategy)
        self._budget = None if device_memory is None else parse_bytes(device_memory)
        self._context = RowContext(seed=seed)
        self.model = as_modules(layers).to(dtype=dtype)
        self._network = Network(self.model, self._context)
        self._loss = make_loss(self.artifact, loss)
        self.optimizer = optimizer(self.model.parameters())
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        self.clip_grad_norm = clip_grad_norm
        self.plan = plan_network(
            self.artifact,
            self._network,
            self._loss,
            self.optimizer,
            self.strategy,
            self._budget,
            dtype,
            hardware,
            make_embedding_optimizer=embedding_optimizer or optimizer,
        )
        check_host(sum(self.plan.host_bytes.values()))
        self.embedding: Embedding | None = None
        if self.artifact.features is None:
            width = self.artifact.feature_width
            make = embedding_optimizer or optimizer
            self.embedding = Embedding(self.artifact.original_id, width, make, seed, dtype)
        self.epoch = 0
        self._best_score, self._waited = float("-inf"), 0
        self._gradients: dict[str, Tensor] = {}
        self._traffic = Traffic()
        self._devices = self._make_devices()
        self._host = make_host(self.artifact, self.plan, self.embedding, dtype)
        self._executor = Executor(self.plan, self._network, self._host, self._devices, self._loss, self._traffic)
        self.setup: EpochRecord | None = None
        self._peaks: dict[str, int] = {}
        self._stepped = False

    def train_epoch(self) -> EpochRecord:
        """One exact gradient step over the whole graph."""
        self._set_up()
        start = perf_counter()
        self._network.activate()
        self._context.epoch = self.epoch
        self.model.train()
        self._zero_gradients()
        self._reset_counters()
        loss = self._executor.run(self.plan.passes.train)
        self._gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        learned = self._embedding_gradient()
        if self.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_([*self.model.parameters(), *learned], self.clip_grad_norm)
        self.optimizer.step()
        if self.embedding is not None:
            self.embedding.step()
            if not self._stepped:
                self._host.count_pageable(self.embedding.state_bytes)
            self._stepped = True
        record = self._record(loss, perf_counter() - start)
        self.epoch += 1
        return record

    def _set_up(self) -> None:
        """Run what is needed once before everything else."""
        if self.setup is not None:
            return
        start = perf_counter()
        reuse_freed_memory()
        self._reset_counters()
        with self._evaluating():
            self._executor.set_up()
        if self.artifact.features is not None and FEATURES not in self._host.names():
            drop_pages(self.artifact.features)
        self.setup = self._record(0.0, perf_counter() - start)

    def _record(self, loss: float, seconds: float) -> EpochRecord:
        peaks = {d.name: d.peak for d in self._devices} | self._host.peak_bytes
        self._peaks = {name: max(peak, self._peaks.get(name, 0)) for name, peak in peaks.items()}
        return EpochRecord(
            epoch=self.epoch,
            loss=loss,
            seconds=seconds,
            bytes=dict(self._traffic.bytes),
            rows=dict(self._traffic.rows),
            peak_bytes=peaks,
            arena_bytes={d.name: d.arena_peak for d in self._devices} | self._host.peak_bytes,
            phases=dict(self._traffic.seconds),
        )

    def _embedding_gradient(self) -> list[nn.Parameter]:
        """The embeddings with their gradient, if there are any."""
        if self.embedding is None:
            return []
        self.embedding.weight.grad = self._host.take(gradient(FEATURES))
        self._gradients[NAME] = self.embedding.ordered(self.embedding.weight.grad)
        return [self.embedding.weight]

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Highest bytes per memory so far, of what ran once and of every epoch."""
        return dict(self._peaks)

    def gradients(self) -> dict[str, Tensor]:
        """``{"0.lin.weight": ...}``: gradient of the last epoch's loss, before clipping and weight decay."""
        return self._gradients

    def evaluate(self) -> dict[str, float]:
        """Scores without dropout: ``{"train", "val", "test"}``; accuracy, or micro-F1 for multi-label."""
        out = self._infer()
        labels = torch.from_numpy(np.array(self.artifact.labels))
        masks = {split: torch.from_numpy(np.array(mask)) for split, mask in self.artifact.masks.items()}
        return {split: score(out, labels, mask) for split, mask in masks.items()}

    def predict(self, vertices: Iterable[Any] | None = None) -> Tensor:
        """The model's output without dropout, [N, C]: row k is vertex k of the original order, which is
        ``artifact.vertex_ids[k]`` where the input has ids of its own.

        Args:
            vertices: the vertices whose rows to return, in this order, named as the input names them; None: all.
        """
        numbers = None if vertices is None else torch.from_numpy(self.artifact.numbers(vertices))
        out = self._infer()
        ordered = torch.empty_like(out)
        ordered[self._host["ids"]] = out
        return ordered if numbers is None else ordered[numbers]

    def fit(
        self,
        epochs: int,
        *,
        eval_every: int = 0,
        patience: int | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        on_epoch: Callable[[EpochRecord], None] | None = None,
    ) -> list[EpochRecord]:
        """Train ``epochs`` more epochs.

        Args:
            eval_every: evaluate after every epoch whose number is a multiple of this, and after the last; 0 for never.
            patience: stop after this many of the regular evaluations without a better validation score.
            run_dir: directory that gets one JSON line per epoch in ``epochs.jsonl``.
            progress: show a progress bar; None: only on a terminal.
            on_epoch: called with each epoch's record.

        Returns:
            one record per epoch trained.
        """
        self._check_fit(epochs, eval_every, patience)
        records: list[EpochRecord] = []
        log = EpochLog(run_dir)
        with tqdm(total=epochs, unit="epoch", disable=None if progress is None else not progress) as bar:
            for k in range(epochs):
                record = self.train_epoch()
                regular = bool(eval_every) and self.epoch % eval_every == 0
                if regular or (eval_every and k + 1 == epochs):
                    record.metrics = self.evaluate()
                if regular and patience is not None:
                    better = record.metrics["val"] > self._best_score
                    self._best_score = max(self._best_score, record.metrics["val"])
                    self._waited = 0 if better else self._waited + 1
                self._step_scheduler(record, regular=regular, scored=bool(eval_every))
                records.append(record)
                log.write(record)
                if on_epoch is not None:
                    on_epoch(record)
                bar.update()
                bar.set_postfix(loss=f"{record.loss:.4f}", **{k: f"{v:.4f}" for k, v in record.metrics.items()})
                if regular and patience is not None and self._waited >= patience:
                    break
        return records

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a snapshot: parameters, optimizer, scheduler, epoch. Atomic."""
        state = {
            "identity": self._identity(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "embedding": None if self.embedding is None else self.embedding.state(),
            "epoch": self.epoch,
            "stopping": [self._best_score, self._waited],
            "seed": self._context.seed,
        }
        write_snapshot(path, state)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a snapshot of the same artifact and layers; the next epochs equal an uninterrupted run's.

        Raises:
            InputError: when it is damaged, or was taken from another artifact or layer list.
        """
        state = read_snapshot(path)
        check_identity(path, state["identity"], self._identity())
        if (state["scheduler"] is None) != (self.scheduler is None):
            raise InputError(f"{path}: one of the snapshot and this run has a scheduler, the other has none")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.embedding is not None:
            self.embedding.load(state["embedding"])
        self.epoch = state["epoch"]
        self._best_score, self._waited = state["stopping"]
        self._context.seed = state["seed"]

    def _identity(self) -> dict[str, str]:
        layers = ", ".join(f"{type(layer).__name__}" for layer in self.model)
        shapes = ", ".join(f"{name}{list(p.shape)}" for name, p in self.model.named_parameters())
        return {
            "artifact": self.artifact.manifest["hash"],
            "layers": f"{layers}: {shapes}",
            "optimizer": type(self.optimizer).__name__,
            "dtype": str(self._host.dtype),
        }

    def _check_fit(self, epochs: int, eval_every: int, patience: int | None) -> None:
        if epochs < 1 or eval_every < 0 or (patience is not None and patience < 1):
            raise InputError(
                f"fit: epochs {epochs}, eval_every {eval_every}, patience {patience}; expected at least 1, 0 and 1"
            )
        if patience is not None and not eval_every:
            raise InputError("patience needs eval_every: early stopping looks at the validation score")
        if patience is not None and not self.artifact.masks["val"].any():
            raise InputError("patience needs a validation score, and the artifact's val mask is empty")

    def _step_scheduler(self, record: EpochRecord, *, regular: bool, scored: bool) -> None:
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            if not scored:
                self.scheduler.step(record.loss)
            elif regular:
                self.scheduler.step(record.metrics["val"])
        elif self.scheduler is not None:
            self.scheduler.step()

    def _infer(self) -> Tensor:
        """[V, C] in new order."""
        self._set_up()
        with self._evaluating():
            self._executor.run(self.plan.passes.evaluate)
        return self._host.take("output")

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """The model inside drops nothing."""
        self._network.activate()
        self.model.eval()
        self._context.training = False
        try:
            yield
        finally:
            self._context.training = True

    def _make_devices(self) -> list[CpuDevice]:
        names = [f"device {i}" for i in range(self.plan.topology.partitions)]
        devices = [CpuDevice(name, self._budget, self._traffic) for name in names]
        for device in devices:
            device.reserve("model", self.plan.shape.model_bytes)
        return devices

    def _zero_gradients(self) -> None:
        for parameter in self.model.parameters():
            if not parameter.requires_grad:
                parameter.grad = None  # frozen since the last epoch
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def _reset_counters(self) -> None:
        self._traffic.clear()
        self._host.reset_peak()
        for device in self._devices:
            device.reset_peaks()
