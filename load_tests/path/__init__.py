"""The way of a token from the step to the client, without a model: what it costs where."""
