"""Zones on one machine: the same bundle on machines that are emulated, over links as slow as the real ones."""
