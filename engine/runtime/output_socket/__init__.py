"""The connection over which the outputs of a replica reach an ingress: both ends."""
