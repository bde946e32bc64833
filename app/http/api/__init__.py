"""The API as data: which body and answer each path has, and its description."""
