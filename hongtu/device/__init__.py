"""Devices: memory with an enforced budget, and copies in and out of it that are counted.

Uses: the top; ``cuda_ext`` and ``kernels``.
"""
