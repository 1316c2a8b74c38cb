"""Measured training runs that come with the program: published figures with their sources (README.md), as CSV files."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
