"""The model on every GPU: parameters are the same everywhere, gradients are summed once per epoch."""

from __future__ import annotations

import copy

import torch

from hongtu.device.backends import Backend
from hongtu.kernels.torch_private import copied
from hongtu.model.network import Network
from hongtu.nn.convolution import is_setting
from hongtu.nn.dropout import epoch_key, key_bytes


class Replicas:
    """A network for every partition; those on one GPU share one.

    Args:
        network: stays the one that the user's optimizer knows; it moves to the GPU of partition 0.

    Attributes:
        of: the network of every partition.
        every: each network once, the user's first.
    """

    def __init__(self, network: Network, backend: Backend, partitions: int) -> None:
        home = backend.gpu_of(0)
        network.modules.to(backend.where(home))
        on = {home: network}
        for gpu in dict.fromkeys(backend.gpu_of(i) for i in range(partitions)):
            if gpu not in on:
                on[gpu] = copied(network, network.modules)
                on[gpu].modules.to(backend.where(gpu))
        self.of = [on[backend.gpu_of(i)] for i in range(partitions)]
        self.every = list(on.values())
        self._where = [backend.where(gpu) for gpu in on]
        self._parameters = [list(network.modules.parameters()) for network in self.every]  # no others may come
        self._has_key = bool(key_bytes(network.modules))

    def spread(self, *, training: bool, epoch: int | None = None) -> None:
        """Before passes: make all networks those of this run, with the same parameters, as the home's modules train or
        evaluate, and in training with no gradients."""
        home = self.every[0]
        for network, where, parameters in zip(self.every, self._where, self._parameters, strict=True):
            network.activate()
            network.context.training, network.context.seed = training, home.context.seed
            network.context.epoch = network.context.epoch if epoch is None else epoch
            if self._has_key:
                epoch_key(network.context, where)
            if network is not home:
                self._copy(network)
            for parameter in parameters if training else ():
                if not parameter.requires_grad:
                    parameter.grad = None  # frozen since the last epoch
                elif parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            if training and (there := [x.grad for x in parameters if x.grad is not None]):
                torch._foreach_zero_(there)

    @torch.no_grad()
    def _copy(self, network: Network) -> None:
        """Have all that the home's modules have."""
        home = self.every[0].modules
        for twin, module in zip(network.modules.modules(), home.modules(), strict=True):
            settings = {name: value for name, value in vars(module).items() if is_setting(value)}
            vars(twin).update(copy.deepcopy(settings))  # a schedule may have set some
        for own, value in zip(network.modules.parameters(), home.parameters(), strict=True):
            own.requires_grad_(value.requires_grad)
        mine, theirs = ((*of.parameters(), *of.buffers()) for of in (network.modules, home))
        for held, given in zip(mine, theirs, strict=True):
            held.data.copy_(given)

    def reduce(self) -> None:
        """After passes: add the gradients up where the optimizer finds them."""
        for network in self.every[1:]:
            for value, own in zip(self.every[0].modules.parameters(), network.modules.parameters(), strict=True):
                if value.grad is not None and own.grad is not None:
                    value.grad += own.grad.to(value.device)
