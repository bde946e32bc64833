"""How much at once, and in a time, callers may ask for."""
