"""HTile IR."""
