"""Mixtures of experts: what a rank holds of them, and how packed ones are read."""
