"""Arithmetic on the rows and edges of a block, each kernel beside its plain reference.

Uses: the top, and ``cuda_ext`` where tensors are on a GPU.
"""
