"""Choice of the next tokens: filters, draws, log-probabilities."""
