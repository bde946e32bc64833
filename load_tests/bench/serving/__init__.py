"""Servers beside each other on one machine, loaded by turns over HTTP."""
