"""The power of two that holds a number: tiles in registers have such sides."""


def power_of_two(n: int) -> int:
    """The least power of two that is `n` or more.

    Args:
        n: a positive integer.

    Returns:
        The power of two.

    >>> [power_of_two(n) for n in (1, 5, 8)]
    [1, 8, 8]
    """
    return 1 << (n - 1).bit_length()
