"""The command `pagoda`: starts a server and ends it, with everything that belongs to it."""
