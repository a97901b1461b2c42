"""Checks of data from outside: options, JSON, archives, files, and text for a terminal.

The lowest layer: it uses Python's standard library and `errors` only (NumPy for arrays), so every other part may use
it.  Each check raises the caller's own error class and names the argument, or the file and field, with what was found
and what is allowed.  SECURITY.md says what is trusted and what is not.
"""
