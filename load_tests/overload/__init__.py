"""More requests than a server can do: what it refuses, how soon, and who gets what it can do."""
