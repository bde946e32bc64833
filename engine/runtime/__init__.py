"""The engine as processes: the replica with its scheduler and ranks, and the ingress's client."""
