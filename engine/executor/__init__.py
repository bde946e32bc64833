"""The process border behind the core's Executor protocol."""
