"""Mixtures of experts, where reading the weights of the chosen ones takes the time."""
