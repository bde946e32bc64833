"""The pure core: sequences, paged memory, scheduler, the step. Standard library only."""
