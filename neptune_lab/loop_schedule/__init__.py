"""Schedules of loop-scalar IR, one primitive a file."""
