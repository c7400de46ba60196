"""Arithmetic on the rows and edges of a block, each kernel beside its plain reference.

Uses: the top and ``cuda_ext``, for tensors on a GPU.
"""
