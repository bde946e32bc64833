"""What is measured: the metrics of a process, and what an engine replica measures."""
