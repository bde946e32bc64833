"""Commands that ask a server: chat, complete, status, top, logs, stop, prefixes."""
