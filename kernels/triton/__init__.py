"""Kernels for NVIDIA GPUs from compute capability 8.0 on, in Triton."""
