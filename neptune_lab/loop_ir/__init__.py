"""The loop-scalar IR: loops around single stores, their text, checks, and what they compute (paper, section 3.1)."""
