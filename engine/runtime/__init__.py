"""The engine as processes: scheduler actor, supervisor of the gang, client of the ingress."""
