"""The engine replica: admission, sessions of clients, the gang of processes."""
