"""Arithmetic on the rows and edges of one block, each kernel beside its plain reference.

Uses: the top modules, and ``cuda_ext`` for tensors on a GPU.
"""
