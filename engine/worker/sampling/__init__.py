"""Choice of tokens for the rows of a batch."""
