"""The HTTP application: middleware, routes, endpoints, errors, server-sent events."""
