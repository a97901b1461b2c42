"""The algebra: from a reducer and what reads it to a proven repair term (SymPy only)."""
