"""Requests: how long they are, when they come, and what is measured of their times."""
