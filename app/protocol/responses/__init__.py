"""POST /v1/responses as a translation of a chat."""
