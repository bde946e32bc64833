"""Who may wait for how long: predicted waits at a replica, submissions of an ingress."""
