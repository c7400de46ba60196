"""CUDA kernels: compiled by NVRTC at first use, or by a C++ compiler and executed on the CPU where there is no GPU."""
