"""What a reader must know about a figure: where ours differs from the paper's, and why."""

NOTES: dict[str, tuple[str, ...]] = {}
