"""Two ways to run an experiment: simulated (in virtual time) and live (on the engine)."""
