"""Differentiable operations over one block: each runs the kernels of its tensors' device."""
