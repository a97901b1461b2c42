"""From HTile IR to Triton source."""
