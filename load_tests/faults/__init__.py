"""Processes of a server are killed or frozen under load; each answer must still be right."""
