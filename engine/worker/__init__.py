"""One rank: row table, KV pool, forward pass, sampling."""
