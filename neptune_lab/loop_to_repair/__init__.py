"""Terms as SymPy expressions, repairs as loop IR again, and a numerical check of the latter."""
