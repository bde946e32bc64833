"""Benchmarks: beside other systems, in process, of single kernels, and of starting a server."""
