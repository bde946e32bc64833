"""Watches the processes of a gang, and has another gang started when one is lost."""
