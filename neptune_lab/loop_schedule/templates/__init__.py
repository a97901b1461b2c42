"""Whole schedules."""
