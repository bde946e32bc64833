"""What a model says of a chat, taken apart: reasoning, text, and calls of tools."""
