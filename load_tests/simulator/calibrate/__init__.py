"""Measures how long steps take on this machine, for the simulator."""
