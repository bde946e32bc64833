"""Channels without a second process."""

import socket

from engine.executor.channel import Channel


def channel_pair() -> tuple[Channel, Channel]:
    """Two connected ends inside this process."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(left), Channel(right)
