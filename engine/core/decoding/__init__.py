"""What a sampled token means: ends, beam search, output."""
