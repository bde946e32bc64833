"""KV cache that is reserved in advance: the baselines that the paper compares with."""
