"""The first minute of a server: its packages, its folder, what its log means, what is shown."""
