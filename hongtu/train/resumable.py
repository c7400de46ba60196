"""What a trainer's later epochs depend on: saved, loaded, and gone on from."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hongtu.config import HOST_DTYPES
from hongtu.errors import InputError, refused_as, uninterrupted
from hongtu.graph.artifact import Artifact
from hongtu.graph.given import as_path
from hongtu.metrics import summary_of
from hongtu.model.checks import check_tensors
from hongtu.model.embedding import NAME, Embedding
from hongtu.model.link_loss import DECODER
from hongtu.model.network import Network
from hongtu.model.pyg_names import places_in_model, uncalled_in_model
from hongtu.model.random_state import random_state, set_random_state
from hongtu.model.wiring import Modules
from hongtu.nn.context import RowContext
from hongtu.ranks.together import Together, called_by_all
from hongtu.train.outputs import SAFETENSORS, read_weights, write_weights
from hongtu.train.run_directory import RunDirectory, newest_snapshot
from hongtu.train.settings import RunSpec
from hongtu.train.snapshot import (
    Identity,
    check_identity,
    describe_layer,
    described_layers,
    read_from,
    read_snapshot,
    read_state_dict,
    write_snapshot,
)

THREADS = "threads"  # of the run that a snapshot is of


@dataclass
class Waiting:
    """The best validation score of the regular evaluations (negative where smaller is better), and how many came since,
    where there is a patience."""

    best: float = float("-inf")
    since: int = 0

    def see(self, score: float) -> bool:
        """Whether this score is the best so far."""
        better = score > self.best
        self.best = max(self.best, score)
        self.since = 0 if better else self.since + 1
        return better


class Resumable:
    """The part of a :class:`~hongtu.train.trainer.Trainer` that knows its state.

    Attributes:
        _learned: the model's parameters by name, which stay the same.
        _torn: what was stopped half-way, and cannot be made good from here.
        _untried: the snapshot that was loaded, and its epoch: its optimizers and scheduler may never have stepped.
    """

    artifact: Artifact
    model: Modules
    decoder: torch.nn.Module | None
    optimizer: torch.optim.Optimizer
    scheduler: Any
    embedding: Embedding | None
    ranks: Together
    epoch: int
    history: list[dict[str, Any]]
    waiting: Waiting
    _learned: list[tuple[str, torch.nn.Parameter]]
    _network: Network
    _spec: RunSpec
    _context: RowContext
    _torn: str | None = None
    _untried: tuple[str | os.PathLike[str], int] | None = None
    _number: int

    @contextmanager
    def _whole_or_torn(self, what: str) -> Iterator[None]:
        """What happens inside is done whole, or nothing but ``load`` works any more; signals wait for it."""
        with uninterrupted():
            self._torn = what
            yield
            self._torn = None

    @property
    def title(self) -> str:
        """Which Trainer this is, behind a method's name; there may be several on the same ranks."""
        return f" of Trainer {self._number}" if self._number > 1 else ""

    @property
    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        """What the optimizer steps, by name."""
        decoder = () if self.decoder is None else self.decoder.named_parameters(prefix=DECODER)
        return [*self._learned, *decoder]

    def _check_whole(self) -> None:
        if self._torn is not None:
            raise InputError(
                f"{self._torn} was stopped half-way, so that weights may be partly those of before; load a snapshot "
                "(trainer.load) or make a new Trainer"
            )
        if self.model is not self._network.modules:
            raise InputError("trainer.model is another one than the plan's; make a new Trainer of its layers")
        check_tensors(self.model.named_parameters())

    def save(self, path: str | os.PathLike[str], *, format: str = "snapshot") -> None:
        """Write a file, atomically. Of several ranks the first writes it, and need not wait for the others, which
        return at once; with learned embeddings all call it, for each has its own rows.

        Args:
            path: the file; the directory is made.
            format: "snapshot": all of ``state()``, for ``load``. "safetensors": the weights alone, by their names in
                ``model``, for other programs and ``load_weights``; the path ends in .safetensors.

        Raises:
            OutputError: when it cannot be written; a file that was there before stays.
        """
        path = as_path("save: path", path)
        if format not in ("snapshot", "safetensors"):
            raise InputError(f"save: format {format!r}, expected 'snapshot' or 'safetensors'")
        if (format == "safetensors") != (path.suffix == SAFETENSORS):
            raise InputError(
                f"save: {path} with format {format!r}; safetensors, and nothing else, end in {SAFETENSORS}"
            )
        with self._with_rows("save"):
            state = self.state()
            with self.ranks.agreed() if self.embedding is not None else nullcontext():
                if self.ranks.rank == 0:
                    _write(path, state, format)

    @contextmanager
    def _with_rows(self, method: str) -> Iterator[None]:
        """A method that all ranks call where each has learned rows of its own; else each calls it for itself."""
        if self.embedding is None:
            self._check_whole()
            yield
            return
        with self.ranks.call(f"{method}{self.title}", self._check_whole):
            yield

    @called_by_all()
    @torch.inference_mode(False)
    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a snapshot of the same artifact and layers; the next epochs equal an uninterrupted run's, with
        as many ranks. Of several ranks the first reads it.

        Raises:
            InputError: when it is damaged, or was taken from another artifact or layer list.
        """
        path = as_path("load: path", path)
        self._restore(path, self.ranks.first(lambda: read_snapshot(path)))

    @called_by_all()
    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Take the weights of a snapshot, a run's newest, safetensors, or a state dict of the same layers or of the
        torch_geometric model that they are from, and nothing else: to predict, or to begin with. The artifact may be
        another one, with the same columns of features.

        Raises:
            InputError: when it is damaged, has other layers, or weights of single vertices.
        """
        path = as_path("load_weights: path", path)
        state, own = self.ranks.first(lambda: _read(path)), self._identity()
        with read_from(path):
            if state["identity"]:
                check_identity(path, state["identity"], {"layers": own["layers"]})
            else:
                state = state | {"model": self._by_own_names(path, state["model"])}
            if self.embedding is not None and state["identity"].get("artifact") != own["artifact"]:
                raise InputError(
                    f"{path}: holds learned rows of the vertices of another artifact; give features instead"
                )
            self.set_weights(state)

    def _by_own_names(self, path: Path, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Weights of which nothing but names and shapes says whose they are; they may have the model's own names."""
        own, places = self.model.state_dict(), dict[str, str]()
        with suppress(InputError):  # no model of torch_geometric's has such layers
            places = places_in_model([*self.model])
        if {*weights} - uncalled_in_model(self.model) == {*places.values()}:
            weights = {name: weights[place] for name, place in places.items()}
        if different := _shapes(weights) ^ _shapes(own):
            name = min(different)[0]
            forms = [list(of[name].shape) if name in of else "none" for of in (weights, own)]
            raise InputError(
                f"{path}: {name}: the file has {forms[0]}, the model has {forms[1]}; rename its weights, or load them "
                "into the torch_geometric model that they are from, and make a new Trainer of hongtu.from_pyg(model)"
            )
        return weights

    @called_by_all()
    @torch.inference_mode(False)
    def resume(self, run_dir: str | os.PathLike[str]) -> bool:
        """Continue the run of ``fit(run_dir=..., save_every=...)`` from its newest snapshot that is not damaged.

        Lines of ``epochs.jsonl`` for epochs after the snapshot are removed: they will be trained again.

        Returns:
            whether there was a snapshot; else the run begins again.

        Raises:
            InputError: when no snapshot can be read, or they are of another artifact or layer list.
        """
        directory = RunDirectory(as_path("resume: run_dir", run_dir, "a directory"))

        def newest() -> tuple[str, dict[str, Any]] | None:
            found = directory.newest()
            return None if found is None else (str(found[0]), found[1])

        with ExitStack() as held:
            with self.ranks.agreed():
                if self.ranks.rank == 0:
                    held.enter_context(directory.held(make=False))
            found = self.ranks.first(newest)
            if found is not None:
                self._restore(*found)
            self.ranks.first(lambda: directory.rewind(self.epoch))
        return found is not None

    def state(self) -> dict[str, Any]:
        """All that later epochs depend on, as tensors and plain values, and the metrics of the epochs so far."""
        with self._with_rows("state"):
            return {
                "identity": {**self._identity(), THREADS: str(torch.get_num_threads())},
                "model": self.model.state_dict(),
                "trained": {name: p.requires_grad for name, p in self.model.named_parameters()},
                "training": {name: module.training for name, module in self.model.named_modules()},
                "optimizer": self.optimizer.state_dict(),
                "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                "embedding": None if self.embedding is None else self.embedding.state(),
                "decoder": None if self.decoder is None else self.decoder.state_dict(),
                "epoch": self.epoch,
                "history": self.history,
                "stopping": [self.waiting.best, self.waiting.since],
                "seed": self._context.seed,
                "rng": random_state(),
            }

    def _restore(self, path: str | os.PathLike[str], state: dict[str, Any]) -> None:
        with read_from(path):
            check_identity(path, state["identity"], self._identity())
        there, here = state["identity"].get(THREADS), torch.get_num_threads()
        if there not in (None, str(here)) and self._spec.backend.on_host:
            warnings.warn(
                f"{path}: the snapshot is of a run with {there} threads, and this one has {here}: sums are rounded "
                f"differently, and numbers may differ in their last digits; torch.set_num_threads({there}) gives the "
                "same bits",
                stacklevel=4,
            )
        with read_from(path):
            if state["history"] is None:
                log = RunDirectory(Path(path).parent)
                state = state | {"history": self.ranks.first(lambda: log.history_of(state))}
            _check_numbers(state)
            with self._whole_or_torn(f"loading {path}"):
                self._take(state)
        self._untried = path, self.epoch

    @contextmanager
    def _of_snapshot(self) -> Iterator[None]:
        """What cannot step inside, in the first epoch behind a snapshot, is that one's."""
        path, epoch = self._untried or ("", -1)
        if self.epoch > epoch + 1:
            yield
            return
        with refused_as(f"{path}: not the state of such a run", "use another snapshot"):
            yield

    def weights(self) -> dict[str, Any]:
        """Copies of all that is learned, and of what normalisations have seen."""
        learned = ("model", "embedding", "decoder")
        return copy.deepcopy({name: value for name, value in self.state().items() if name in learned})

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Take what ``weights()`` gave, or a snapshot's; optimizer and epoch stay."""
        if not isinstance(weights, Mapping) or "model" not in weights:
            raise InputError(
                "set_weights: expected what trainer.weights() gave; a state dict is for trainer.model.load_state_dict"
            )
        with self._whole_or_torn("taking weights"):
            self.model.load_state_dict(weights["model"])
            if self.embedding is not None:
                self.embedding.set(weights["embedding"]["weight"])
            if self.decoder is not None and weights.get("decoder") is not None:
                self.decoder.load_state_dict(weights["decoder"])

    def _take(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(state.get("trained", {}).get(name, parameter.requires_grad))
        for name, module in self.model.named_modules():
            module.training = state.get("training", {}).get(name, module.training)
        if self.decoder is not None:
            self.decoder.load_state_dict(state["decoder"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.embedding is not None:
            self.embedding.load(state["embedding"])
        self.epoch, self.history = state["epoch"], list(state["history"])
        self.waiting = Waiting(*state["stopping"])
        self._context.seed = state["seed"]
        set_random_state(state["rng"])

    def _identity(self) -> Identity:
        """What a snapshot has in common with every run that may go on from it."""
        return {
            "artifact": self.artifact.manifest["hash"],
            "layers": described_layers(self.model),
            "optimizer": type(self.optimizer).__name__,
            "scheduler": type(self.scheduler).__name__,
            "embedding optimizer": type(self.embedding and self.embedding.optimizer).__name__,
            "dtype": str(self._spec.dtype),
            "autocast": str(self._network.autocast),
            **{name: x for name in HOST_DTYPES if (x := getattr(self._spec, name))},
            **({} if self.decoder is None else {DECODER: describe_layer(self.decoder)}),
        }


def _check_numbers(state: dict[str, Any]) -> None:
    """Of a snapshot, those that nothing looks at when they are taken over."""
    best, since = state["stopping"]
    whole = {"epoch": state["epoch"], "seed": state["seed"], "patience": since}
    wrong = [name for name, x in whole.items() if type(x) is not int or not 0 <= x < 2**63]
    wrong += ["best score"] if type(best) not in (int, float) else []
    wrong += ["history"] if None in map(summary_of, state["history"]) else []
    rates = [float(group["lr"]) for group in state["optimizer"]["param_groups"]]
    if wrong := wrong + ["learning rate"] * any(rate != rate for rate in rates):
        raise ValueError(f"its {wrong[0]} is none")


def _read(path: Path) -> dict[str, Any]:
    """What a file has of a snapshot, or of weights alone, whose identity is {}."""
    if path.suffix == SAFETENSORS:
        return read_weights(path)
    file = newest_snapshot(path)
    weights = read_state_dict(file)
    return read_snapshot(file) if weights is None else {"identity": {}, "model": weights, "embedding": None}


def _write(path: Path, state: dict[str, Any], format: str) -> None:
    if format == "snapshot":
        write_snapshot(path, state)
        return
    rows = {} if state["embedding"] is None else {NAME: state["embedding"]["weight"]}
    rows |= {f"{DECODER}.{name}": value for name, value in (state["decoder"] or {}).items()}
    write_weights(path, state["model"] | rows, state["identity"])


def _shapes(weights: Mapping[str, Any]) -> set[tuple[str, tuple[int, ...]]]:
    return {(name, tuple(value.shape)) for name, value in weights.items()}
