"""CUDA kernels as text, compiled at first use and launched.

Uses: the top.
"""
