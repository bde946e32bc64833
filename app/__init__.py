"""HTTP, text, deployments: the one package that knows Ray Serve, tokenizers, OpenAI's API."""
