"""Attention over paged keys and values: decode and prefill kernels, and their shares of a batch."""
