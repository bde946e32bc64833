"""Traces on other settings, with the real scheduler in virtual time, and how good that is."""
