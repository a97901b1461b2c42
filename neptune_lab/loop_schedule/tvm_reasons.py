"""What TVM's refusals mean, in the words of this package: TVM numbers blocks and loops, and quotes its own source.

>>> in_words("The block s_tir.SBlock#0 is an output block", "out")
"'out' writes an output, whose iterations all have to run"
>>> in_words("another reason", "out")
'another reason'
"""

from __future__ import annotations

# A part of TVM's message, and what is said instead of the message; {0}: the block or loop that the step names.
_MEANINGS = (
    ("is an output block", "{0!r} writes an output, whose iterations all have to run"),
    (
        "is not a complete block",
        "{0!r} reads what it writes itself, or is not the only block that writes it, so it cannot be computed again",
    ),
    (
        "is not a stage pipeline",
        "the program reads a buffer before another block has written all of it, and TVM moves no block then",
    ),
    (
        "affine binding",
        "the loops of {0!r} are not independent: some were fused, or sizes do not divide, so indices depend on several",
    ),
    ("non-single-branch stmt", "between the loops of {0!r} there are other blocks"),
    ("is not the only child of outer loop", "between the loops of {0!r} there are other blocks"),
    ("has annotation or thread binding", "{0!r} has a loop that is bound to the grid or annotated"),
    ("loop not to be the ancestor of block", "{0!r} is under that loop already"),
    ("CanProveSinglePoint", "TVM cannot show that {0!r} would run for every element there"),
    ("The body of the inlined block should be in form of", "{0!r} stores more than one value for each element"),
    ("expected to be written by single block", "{0!r} is not the only block that writes its buffer"),
)


def in_words(reason: str, node: str) -> str:
    """The reason of a refusal.

    Args:
        reason: TVM's message.
        node: the block or loop that the step names.

    Returns:
        The reason with that name; TVM's own words if it is not known.
    """
    return next((meaning.format(node) for part, meaning in _MEANINGS if part in reason), reason)


__all__ = ["in_words"]
