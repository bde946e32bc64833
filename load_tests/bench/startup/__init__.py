"""How soon a server serves, what its processes weigh, and how soon it is gone."""
