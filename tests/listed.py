"""A search of the tuner that asks for the candidates of a list."""

from __future__ import annotations


class Listed:
    """Asks for these candidates, in order, and notes what it is told."""

    def __init__(self, *candidates):
        self.left, self.told = list(candidates), {}

    @property
    def finished(self):
        return not self.left

    def ask(self, n):
        asked, self.left = self.left[:n], self.left[n:]
        return asked

    def tell(self, candidate, microseconds):
        self.told[candidate] = microseconds
