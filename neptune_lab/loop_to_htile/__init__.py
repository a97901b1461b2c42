"""Translates the loop-scalar IR to HTile: tileable nests, regions, dimension order, patterns (paper, section 5)."""

from neptune_lab.loop_to_htile.translate import translate

__all__ = ["translate"]
