"""CUDA kernels, compiled at first use."""
