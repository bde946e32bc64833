"""The real scheduler in virtual time: replays, and models of how long steps take."""
