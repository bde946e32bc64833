"""Kernels beside the best known ones, and the operations of a step on the CPU."""
