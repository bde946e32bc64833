"""The ingress's side of the engine."""
