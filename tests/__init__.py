"""Tests; the folders mirror the source."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
