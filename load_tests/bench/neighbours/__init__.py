"""Requests that are large, odd or both, beside streams that must not feel them."""
