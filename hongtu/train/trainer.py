"""The Trainer: exact full-graph training of a list of layers on an artifact, within a device-memory budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from hongtu.config import size
from hongtu.device.backends import Backend, get_backend
from hongtu.engine.engine import Engine
from hongtu.errors import InputError, names_known
from hongtu.graph.artifact import Artifact, open_artifact
from hongtu.hardware import Hardware, load_hardware
from hongtu.host import check_disk
from hongtu.kernels.torch_private import parameter_hooks, times_written
from hongtu.metrics import EpochRecord
from hongtu.model.asked import check_asked
from hongtu.model.checks import cast, check_tensors
from hongtu.model.edge_inputs import bind_edges
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.embedding import NAME, Embedding
from hongtu.model.expression import check_kinds
from hongtu.model.link_loss import LinkLoss, link_loss_in, link_scores, target_task, trained_decoder
from hongtu.model.loss_terms import Losses, parts_of
from hongtu.model.network import Network
from hongtu.model.parameter_hooks import Resting, call_hooks, hooks_once
from hongtu.model.random_state import deterministic_torch
from hongtu.model.typed import with_types
from hongtu.model.vertex_loss import MeanLoss
from hongtu.model.wiring import Entry, as_modules
from hongtu.nn.context import RowContext
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES, gradient
from hongtu.plan.passes.strategy import Strategy, get_strategy
from hongtu.ranks.fabric import fabric_between, over
from hongtu.ranks.group import current
from hongtu.ranks.likeness import likeness
from hongtu.ranks.share import share_of
from hongtu.ranks.stages import ByLayer, Stages
from hongtu.ranks.together import Alone, Together, called_by_all
from hongtu.train.anomaly import check_epoch
from hongtu.train.evaluators import Evaluation, Metric
from hongtu.train.inferring import LOSS_OF_VAL, Inferring
from hongtu.train.loop import FitOptions, fit
from hongtu.train.network_plan import Job
from hongtu.train.ranked import (
    Tried,
    check_ranked,
    check_rows_optimizer,
    choose_stages,
    clip_gradients,
    deal,
    described,
    exchanging_layers,
    settings_of,
    try_plan,
)
from hongtu.train.resumable import Resumable, Waiting
from hongtu.train.runtime import Runtime
from hongtu.train.settings import (
    OptimizerFactory,
    RunSpec,
    adam,
    budget_bytes,
    check_plain,
    check_precision,
    check_steps,
    host_limit,
    make_loss,
    make_optimizer,
    make_scheduler,
    read_host_dtypes,
    validation_loss,
)
from hongtu.train.snapshot import described_layers
from hongtu.train.tracing.shape import fill_widths
from hongtu.train.tracing.stepping import Stepped, learned_bytes, taken_inside


class Trainer(Inferring):
    """Trains ``layers`` on the whole graph of an artifact: full neighbourhoods, the exact gradient.

    Args:
        artifact: an opened artifact or its path.
        layers: graph layers (:class:`hongtu.nn.Layer`) with row-wise ``torch.nn`` modules and normalisations anywhere
            between them; a pair of one and a header such as "x, x0 -> x" takes and gives values by name.
        loss: "cross_entropy", "bce_with_logits", "mse", "l1", "huber" or "smooth_l1"; a loss of torch.nn or
            torch.nn.functional, with class weights, label smoothing, ...; a callable (out [T, C], target) -> per-vertex
            losses [T], whose plain mean is taken; or a
            :class:`~hongtu.model.loss_terms.LossTerm`, or a list of all these, whose weighted sum is meant; or a
            :class:`~hongtu.model.link_loss.LinkLoss` over edges, alone or as one of these.
        optimizer: called with the parameters; returns any torch optimizer that steps without a closure.
        device: "cpu", "cuda" for all GPUs, "cuda:K" for one, "torch-sparse": the CPU with its products, or "simulated":
            CUDA's engine and kernels on the CPU.
        device_memory: bytes per partition (or "2GiB"): all that the run keeps on one device; "50%": a share of what the
            largest device is likely to hold of the whole graph without a limit; None for no limit.
        host_memory: bytes (or "8GiB") of all that the run keeps on the host: vertex rows, staging memory, the graph's
            structure, plan arrays and labels; on the CPU the devices', too; of ranks what each process keeps. None:
            what there is. Pages of files that the system keeps for itself, and gives up, are not counted.
        spill: a directory, made where it is not there; vertex rows that ``host_memory`` cannot hold lie in a file there
            while the Trainer exists.
        strategy: "full", "paper", "p2p", "none" or a :class:`~hongtu.plan.passes.strategy.Strategy`.
        seed: of dropout; parameters are never reinitialised.
        dtype: torch.float32, or torch.float64 for checks.
        autocast: torch.bfloat16: transforms, updates and row-wise modules compute under torch.autocast; rows,
            parameters, aggregates and gradients stay float32. Not exact.
        host_dtype: torch.bfloat16 (or its name): the host keeps features and what layers give forward in bfloat16, and
            links between host and devices, and between ranks, carry that: half the bytes. Arithmetic and sums, weights
            and results stay float32. Not exact.
        gradient_dtype: torch.bfloat16: the same for gradients of what layers give. Sums are taken in float32, and
            rounded when the host keeps them.
        scheduler: called with the optimizer; returns a torch learning-rate scheduler, which ``fit`` steps once per
            epoch (ReduceLROnPlateau: at each regular evaluation with the validation score, or the validation loss
            where its mode is "min" and a higher score is better; with the loss every epoch where ``fit`` does not
            evaluate).
        clip_grad_norm: clip the gradient's total norm to this before each step.
        embedding_optimizer: as ``optimizer``, for the embeddings of an artifact made with ``features="embedding:D"``;
            it runs on the host. Default: ``optimizer``.
        hardware: the profile by which the planner compares plans, or its name (``hongtu plan --hardware``).
        detect_anomaly: stop before the step when the loss or a gradient is NaN or infinite; the epoch is then run once
            more, to say in which layer, batch and vertex. Costs nothing else.
        deterministic: refuse operations of torch whose result may differ from run to run; the engine itself gives the
            same bits in every run on the CPU, with the same number of threads.
        on_oom: what to do when layers take more memory than when they were planned: "raise", or "replan": run the
            epoch again with smaller groups of chunks, parameters and optimizer as they were.
        metric: what ``evaluate`` computes (``evaluators.py``): None for accuracy, micro-F1 of multi-label, R2;
            "accuracy", "f1", "macro-f1" or "auc"; a callable (out [T, C], target) -> number, such as a metric of
            torchmetrics; or several, a list of names or a dictionary of either. A smaller score is the better one of a
            metric whose ``higher_is_better`` is False, of torch's losses, and of names that end in "error", "loss",
            "mse", "mae" and the like. Of a LinkLoss without targets "auc" (None), "mrr"
            or "hits@K", or several; beside a loss over vertices metrics are theirs, and links have the AUC.
        dependencies: where rows of other ranks come from: "cache" computes them again, from features, as far as outputs
            depend on them; "comm" fetches what layers exchange and sends gradients back; "hybrid" fetches from that
            layer on with which an epoch is predicted to be the shortest.
        topology: a JSON file that says what joins the ranks (docs/machines.md); None: the links of their hosts.
        ranks: the processes that train together, each calling everything of its Trainer in the same order; None: those
            of torch.distributed's default group, where there is one.

    Attributes:
        model: ModuleList of the layers.
        decoder: the module that a :class:`~hongtu.model.link_loss.LinkLoss` scores pairs with, or None.
        embedding: the learned rows (:class:`~hongtu.model.embedding.Embedding`), or None.
        epoch: epochs trained so far.
        history: epoch, loss, seconds and metrics of every epoch of ``fit``, those before a snapshot included.

    Raises:
        InputError: for anything that cannot work, before any work.
        BudgetError: when the budget is too small; names the smallest that works.
    """

    @names_known
    @torch.inference_mode(False)
    def __init__(
        self,
        artifact: Artifact | str | os.PathLike[str],
        layers: Sequence[Entry],
        *,
        loss: Losses | LinkLoss = "cross_entropy",
        optimizer: OptimizerFactory = adam,
        device: str | torch.device | Backend = "cpu",
        device_memory: int | str | None = None,
        host_memory: int | str | None = None,
        spill: str | os.PathLike[str] | None = None,
        strategy: str | Strategy = "full",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        autocast: torch.dtype | None = None,
        host_dtype: torch.dtype | str | None = None,
        gradient_dtype: torch.dtype | str | None = None,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        clip_grad_norm: float | None = None,
        embedding_optimizer: OptimizerFactory | None = None,
        hardware: Hardware | str | None = None,
        detect_anomaly: bool = True,
        deterministic: bool = False,
        on_oom: str = "raise",
        metric: Metric = None,
        dependencies: str = "cache",
        topology: str | os.PathLike[str] | None = None,
        ranks: Together | None = None,
    ) -> None:
        if not isinstance(ranks, Together | None):
            raise InputError(
                f"ranks is {ranks!r}: expected hongtu.Ranks(group), or nothing for all processes; as many are started "
                "by torchrun --nproc-per-node (docs/machines.md)"
            )
        self.ranks = current() if ranks is None else ranks
        self.ranks.calls.trainers += 1
        self._number = self.ranks.calls.trainers
        with self.ranks.call(f"Trainer{self.title}"):
            with self.ranks.agreed():
                self.artifact = artifact if isinstance(artifact, Artifact) else open_artifact(artifact)
                self.artifact.check_bounds()
                check_precision(dtype, autocast)
                check_steps(scheduler, clip_grad_norm)
                check_plain(seed, detect_anomaly=detect_anomaly, deterministic=deterministic)
                _, beside = parts_of(loss)
                link = None if beside else link_loss_in(loss)
                links = link is not None and link.targets is None
                self._link_scores = link_scores(metric if links else None)  # type: ignore[arg-type]
                task = self.artifact.task if link is None or links else target_task(link.targets)
                self._evaluation = Evaluation(None if links else metric, task)
                backend = get_backend(device, self.artifact.size)
                limit = host_limit(
                    host_memory, spills=spill is not None, has_devices=backend.on_host, device_memory=device_memory
                )
                if spill is not None:
                    check_disk(spill, 0, make=True)
                self._spec = RunSpec(
                    strategy=get_strategy(strategy), dtype=dtype, autocast=autocast, limit=limit,
                    make_rows_optimizer=embedding_optimizer or optimizer, clips=clip_grad_norm is not None,
                    hardware=load_hardware(hardware or backend.hardware), spill=spill, on_oom=on_oom, backend=backend,
                    ranks=self.ranks, **read_host_dtypes(host_dtype, gradient_dtype),
                )  # fmt: skip
                self.strategy, self.hardware = self._spec.strategy, self._spec.hardware
                self.clip_grad_norm, self.deterministic = clip_grad_norm, deterministic
                self.detect_anomaly = detect_anomaly

                self._context = RowContext(seed=seed)
                self.model = as_modules(with_types(layers, self.artifact))
                self.artifact = bind_edges(self.model, self.artifact, dtype)
                check_asked(self.model, self.artifact, dtype, backend.where(0).type)
                fill_widths(self.model, self.artifact, dtype)
                check_tensors(self.model.named_parameters())
                cast(self.model, dtype, backend.where(0))  # before optimizers make their state beside it
                self._learned = list(self.model.named_parameters())  # others are refused where it runs
                self._network = Network(self.model, self._context, autocast)
                self._network.read_graph(self.artifact.topology)
                check_kinds(self.model, self._network.wiring.sources, self.artifact)
                check_ranked(self.artifact, self._network, loss, self.ranks.size, dependencies, on_oom)
                self.dependencies = dependencies
                self.decoder = trained_decoder(loss)
                if self.decoder is not None:
                    cast(self.decoder, dtype, "cpu")  # where pairs are scored
                self.optimizer = make_optimizer(optimizer, (p for _, p in self._named))
                self.scheduler = None if scheduler is None else make_scheduler(scheduler, self.optimizer)
                self.embedding: Embedding | None = None
                self._input = self._job(self.artifact, loss).with_sparse_rows(self._network).artifact
                self._budget = budget_bytes(
                    device_memory, lambda budget: self._job(self._input, loss, limit=None).plan(self._network, budget)
                )
            self.ranks.check_same(self._given(loss, metric), artifact=self.artifact.path)
            self._fabric = fabric_between(self.ranks, topology, self.hardware)
            job, self._runtime = self._make_runtime(loss)
            assert job.loss is not None
            self._share, self._loss = job.artifact, job.loss
            scored = self._loss if isinstance(self._loss, MeanLoss) else self._loss.beside or self._loss
            self._evaluation.threshold = scored.threshold
            self._validation = None
            if self.watched == LOSS_OF_VAL and self.validates:
                self._validation = validation_loss(self.artifact, loss)  # type: ignore[arg-type]
            for modules in (self.model, *(() if self.decoder is None else (self.decoder,))):
                self.ranks.take_model(modules)

            self.epoch = 0
            self.record: EpochRecord | None = None
            self.history: list[dict[str, Any]] = []
            self.waiting = Waiting()
            self._gradients: dict[str, Tensor] = {}
            self._written: dict[str, int] = {}  # how often each of these had been, before the step
            self._copies = False  # gradients before a step
            self._resting: Resting = []
            self._network.found = None

    def _job(self, artifact: Artifact, loss: Losses | LinkLoss, **options: Any) -> Job:
        """Of the whole graph, or of a rank's share."""
        return Job(artifact, make_loss(artifact, loss), self.optimizer, replace(self._spec, **options))

    def _make_runtime(self, loss: Losses | LinkLoss) -> tuple[Job, Runtime]:
        """What this rank runs, on its share of the artifact, and what runs it."""
        layers_on_ranks, seed, spec = exchanging_layers(self._network), self._context.seed, self._spec

        def sketch() -> ExecutionPlan:
            return self._job(self.artifact, loss).sketch(self._network)

        bounds = self.ranks.first(lambda: deal(self.artifact, self.ranks.size, sketch, self.hardware))

        def job_of(stages: Stages) -> Job:
            return self._job(share_of(self._input, self.ranks.rank, bounds, stages, self._fabric), loss)

        def tried(stages: Stages) -> list[Tried]:
            with self.ranks.agreed():
                job = job_of(stages)
                own: Any = try_plan(lambda: job.plan(self._network, self._budget), over(self._fabric, self.hardware))
            return [Tried(*of_rank) for of_rank in self.ranks.gather(tuple(own))]

        stages: Stages = ByLayer(layers_on_ranks, 0)
        if not self.artifact.learns_features:
            stages = choose_stages(layers_on_ranks, self.dependencies if self.ranks.size > 1 else "cache", tried)
        with self.ranks.agreed():
            job = job_of(stages)

            def learned() -> Embedding:
                make_optimizer = spec.make_rows_optimizer
                self.embedding = Embedding(job.artifact, make_optimizer, seed, spec.dtype, self.ranks.each)
                if self.ranks.size > 1:
                    check_rows_optimizer(self.embedding.optimizer)
                return self.embedding

            if isinstance(job.loss, EdgeLoss):
                job.loss.check_scores(self._link_scores)
            rows = learned if self.artifact.learns_features else None
            runtime = Runtime(job, self._network, rows=rows, budget=self._budget)
        if self.embedding is not None:
            made = self.embedding.optimizer
            self.ranks.check_same({"embedding_optimizer": (type(made).__name__, settings_of(made))})
        return job, runtime

    def __repr__(self) -> str:
        budget = "no limit" if self._budget is None else size(self._budget)
        return f"Trainer({self.artifact}, {self.model}, {budget} per device, {self.epoch} epochs trained)"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Trainer can be neither pickled nor copied: it holds devices. Use trainer.save(path), and load(path) of "
            "another Trainer of the same artifact and layers"
        )

    @called_by_all(lambda self: self.check_trains())
    @torch.inference_mode(False)
    def train_epoch(self) -> EpochRecord:
        """One exact gradient step over the whole graph."""
        self._gradients = {}  # the next ones take their memory
        self._check_ranks_alike()
        start, loss, parameters = self._runtime.run(self._differentiate)
        with self._whole_or_torn(f"the step of epoch {self.epoch + 1}"):
            return self._step(start, loss, parameters)

    def _step(self, start: float, loss: float, parameters: list[nn.Parameter]) -> EpochRecord:
        self._engine.observe()
        if self.clip_grad_norm is not None:
            clip_gradients(parameters, self.clip_grad_norm, self.embedding, self.ranks)
        with self._of_snapshot():
            self.optimizer.step()
            if self.embedding is not None:
                self._step_rows(self.embedding)
        self._copies |= self._changed != []
        self.record = self._engine.record(self.epoch + 1, loss, perf_counter() - start)
        self.epoch += 1
        return self.record

    def _step_rows(self, rows: Embedding) -> None:
        """Update learned rows, and count what that takes."""
        beside, copied = taken_inside(rows.step), self._copies_learned
        if NAME not in self._gradients or copied:
            self._engine.drop_input_gradient()
        stepped = Stepped(rows.state_bytes, copied, beside)
        self._engine.count_once(learned_bytes(stepped, self._share, rows.weight.nbytes))

    @property
    def _changed(self) -> list[str]:
        """The gradients that were written to since they were computed."""
        return [name for name, gradient in self._gradients.items() if times_written(gradient) != self._written[name]]

    @property
    def _copies_learned(self) -> bool:
        return self._copies or self.clip_grad_norm is not None or self.plan.shape.copies_learned

    def _differentiate(self, engine: Engine) -> tuple[float, float, list[nn.Parameter]]:
        """When it began, the loss, and all that is learned, with its gradients."""
        start, named = perf_counter(), self._named
        parameters = [p for _, p in named]
        with deterministic_torch(self.deterministic):
            with hooks_once(parameters, self._resting):
                loss = self.ranks.add_gradients(parameters, engine.train(self.epoch))
            copies = self._copies or self.clip_grad_norm is not None or self.plan.shape.copies_gradients
            found = {name: p.grad.clone() if copies else p.grad for name, p in named if p.grad is not None}
            if self.embedding is not None and self.embedding.weight.requires_grad:
                rows = self.embedding.weight
                rows.grad = engine.host[gradient(FEATURES)]
                call_hooks(rows, parameter_hooks(rows))
                found[NAME] = rows.grad.clone() if self._copies_learned else rows.grad
                parameters.append(rows)
            self._gradients, self._written = found, {name: times_written(grad) for name, grad in found.items()}
            if self.detect_anomaly:
                check_epoch(engine, self.epoch, loss, parameters, Alone() if self.embedding is None else self.ranks)
        return start, loss, parameters

    @property
    def _engine(self) -> Engine:
        return self._runtime.engine

    @property
    def plan(self) -> ExecutionPlan:
        """What runs: predicted rows, bytes per link, peak bytes."""
        return self._runtime.plan

    @property
    def setup(self) -> EpochRecord | None:
        """Record of what ran once before the first epoch, or None before it."""
        return self._engine.setup

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Highest bytes per memory so far, of what ran once and of every epoch."""
        return dict(self._engine.peaks)

    def gradients(self) -> dict[str, Tensor]:
        """``{"0.lin.weight": ...}``: gradient of the last epoch's loss, before clipping and weight decay.

        Raises:
            InputError: for gradients that somebody has written to since.
        """
        if changed := self._changed:
            raise InputError(
                f"gradients: {changed[0]}.grad was written to after the epoch, by a hook of the optimizer's step, or "
                "zero_grad(set_to_none=False); call gradients() before, or train_epoch() again: copies are kept now"
            )
        found = {name: gradient.clone() for name, gradient in self._gradients.items() if name != NAME}
        if self.embedding is not None and NAME in self._gradients:
            with self.ranks.call(f"gradients{self.title}"):
                found[NAME] = self.embedding.ordered(self._gradients[NAME])
        return found

    def check_trains(self) -> None:
        """Refuse to train where nothing can be."""
        self._check_whole()
        if not self._loss.trains:
            raise InputError(
                f"{self.artifact.path}: no vertex has a loss, for there is no train mask; predict, embed and evaluate "
                "work. To train, add a train_mask to the input or pass --random-split 0.6,0.2,0.2 (random_split), and "
                "preprocess it again; or give the loss a mask of its own, hongtu.LossTerm(loss, mask=...)"
            )

    @names_known
    @called_by_all(Resumable._check_whole)
    def fit(
        self,
        epochs: int,
        *,
        eval_every: int = 0,
        patience: int | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        save_every: int = 0,
        keep: int = 3,
        keep_best: bool = False,
        restore_best: bool = False,
        progress: bool | None = None,
        on_epoch: Callable[[EpochRecord], None] | None = None,
        callbacks: Sequence[Any] = (),
    ) -> list[EpochRecord]:
        """Train ``epochs`` more epochs.

        Args:
            eval_every: evaluate after every epoch whose number is a multiple of this, and after the last; 0 for never.
            patience: stop after this many of the regular evaluations without a better validation score.
            run_dir: directory that gets one JSON line per epoch in ``epochs.jsonl``, and the snapshots.
            save_every: write a snapshot after every epoch whose number is a multiple of this, and after the last; 0
                for never. ``resume(run_dir)`` goes on from the newest.
            keep: snapshots to keep in ``run_dir``; older ones are removed.
            keep_best: write ``best.pt`` into ``run_dir``, the snapshot of the best validation score of the regular
                evaluations.
            restore_best: at the end take the weights of the best validation score, of ``best.pt`` where there is a
                ``run_dir``; snapshots and optimizer are those of the last epoch.
            progress: show a progress bar; None: on a terminal and in a notebook.
            on_epoch: called with each epoch's record, after everything else.
            callbacks: objects with methods of :class:`hongtu.train.callbacks.Callback`, such as loggers.

        Returns:
            one record per epoch trained.
        """
        with self.ranks.agreed():
            options = FitOptions(
                epochs=epochs, eval_every=eval_every, patience=patience, run_dir=run_dir, save_every=save_every,
                keep=keep,
                keep_best=keep_best, restore_best=restore_best, progress=progress, on_epoch=on_epoch,
                callbacks=callbacks,
            )  # fmt: skip
        return fit(self, options)

    def _given(self, loss: Any, metric: Any) -> dict[str, Any]:
        """What must be the same on every rank, by name."""
        return described(
            self.model, self.optimizer, self.scheduler, loss, {
                **self._identity(), "artifact": likeness(self.artifact.manifest | {"hash": ""}),
                "seed": self._context.seed, "strategy": self.strategy, "clip_grad_norm": self.clip_grad_norm,
                "dependencies": self.dependencies, "metric": metric, "detect_anomaly": self.detect_anomaly,
                **({} if self.dependencies == "cache" else {"hardware": self.hardware}),  # they plan alike
                "layers": likeness(described_layers(self.model)),
            },
        )  # fmt: skip
