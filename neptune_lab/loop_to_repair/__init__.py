"""From loop IR to algebra and back: terms as SymPy expressions, repairs as loop IR, and a check of these by numbers."""
