"""The KV cache on the host: block pool, block tables, block managers, prefix cache, swap space."""
