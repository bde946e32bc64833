"""The live page `/ui`: its files, and the numbers that it shows."""
