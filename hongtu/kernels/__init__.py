"""Arithmetic on the rows and edges of a block, each kernel beside its plain reference.

Uses: the top; ``cuda_ext``.
"""
