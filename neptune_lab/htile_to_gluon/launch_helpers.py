"""Functions of the host in emitted modules: how many programs run at a time, and how many heads share the L2 cache."""

from __future__ import annotations

from neptune_lab.htile_to_triton.program_order import CACHE

# The same limit for programs that take tile after tile, each further along in the keys.
CACHE_IN_TURNS = 64 * 2**20
# Tiles that run at the same time, about two per multiprocessor.
EVEN = 256

MULTIPROCESSORS = '''@functools.cache
def _multiprocessors(device):
    """How many programs run at a time on a GPU, one for each of its multiprocessors."""
    # Where the module is compiled ahead, tensors have no device of their own.
    return torch.cuda.get_device_properties(device if device.type == "cuda" else None).multi_processor_count
'''

# Elements of 16 bits that `_heads_together` counts loop tensors in, rounded up: so it is rarely asked something new
# while lengths change from call to call.
COUNTED = 2**18

HEADS_TOGETHER = f'''@functools.cache
def _heads_together(blocks, heads, loaded, programs):
    """How many heads run at the same time, a divisor of their number: as many as balance long and short row blocks, if
    their keys and values fit the L2 cache; `loaded` is the size of these, in {2 * COUNTED // 1024} KiB."""
    if programs == 0:  # (one for each tile)
        enough = 1
        while heads % enough or (enough < heads and enough * blocks < {EVEN}):
            enough += 1
        together = max(1, min(enough, {CACHE // (2 * COUNTED)} * heads // loaded))
        while heads % together:
            together -= 1
        return together
    together, shortest = heads, 0
    for some in range(1, heads + 1):
        tiles = some * blocks
        fits = shortest == 0 or loaded * some <= {CACHE_IN_TURNS // (2 * COUNTED)} * heads
        if heads % some == 0 and tiles >= programs and fits:
            # The longest time of a program, in tiles of a row block that sees all keys up to its own: of the first
            # program or the last.
            longest = 0
            for program in range(0, programs, max(1, programs - 1)):
                time = 0
                for place in range(0, tiles, programs):
                    at = place + (program if place // programs % 2 == 0 else programs - 1 - program)
                    if at < tiles:
                        time += blocks - at // some
                longest = max(longest, time * heads // some)
            if shortest == 0 or longest < shortest:
                together, shortest = some, longest
    return together
'''
# Of programs that add in order: bytes of the cache for the heads that run at the same time, bytes of an element of the
# queries, their cotangents and the total, and the most heads.
ORDERED_CACHE, ORDERED_BYTES, ORDERED_HEADS = 40 * 2**20, 8, 32

HEADS_IN_ORDER = f'''@functools.cache
def _heads_in_order(heads, loaded):
    """How many heads run at the same time if programs add in order, a divisor of their number: as many as fit the cache
    with what they load and add to; `loaded` is the size of the former, in {2 * COUNTED // 1024} KiB."""
    together = max(1, min(heads, {ORDERED_HEADS}, {ORDERED_CACHE // (ORDERED_BYTES // 2 * COUNTED)} * heads // loaded))
    while heads % together:
        together -= 1
    return together
'''
