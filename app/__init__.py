"""HTTP, text and deployments: the only package that knows OpenAI's API, Ray Serve and tokenizers."""
