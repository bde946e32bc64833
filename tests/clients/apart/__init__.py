"""Clients whose packages disagree with ours: in an environment of their own."""
