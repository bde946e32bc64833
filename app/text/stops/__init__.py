"""Stop strings: found in a text, and as automata over tokens."""
