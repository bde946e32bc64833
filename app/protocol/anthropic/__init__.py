"""POST /v1/messages, Anthropic's shape, as a translation of a chat."""
