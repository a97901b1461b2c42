"""Rewrites of HTile IR, one a file."""
