"""The runtime of NVIDIA GPUs: when they work, and how blocks move to and from them."""
