"""What answers must match, in the words of OpenAI and of vLLM."""
