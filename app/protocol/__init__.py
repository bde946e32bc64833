"""OpenAI's requests, answers and errors: pure conversions, no sockets."""
