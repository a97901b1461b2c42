"""From loop-scalar IR to HTile IR."""
