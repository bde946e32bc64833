"""Requests for a server under test: how long, when, how they are sent and what is measured."""
