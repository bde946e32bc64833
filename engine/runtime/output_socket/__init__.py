"""The connection over which requests reach a replica, and its outputs an ingress: both ends."""
