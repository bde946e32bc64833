"""The KV cache of models with windows: groups of layers over one pool."""
