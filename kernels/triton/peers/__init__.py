"""Sums over the GPUs of one node that write into each other's memory."""
