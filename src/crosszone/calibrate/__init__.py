"""Measured runs, accuracy tables and fits."""
