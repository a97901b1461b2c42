"""The module's functions for a consumer of two groups of warps and the relays of these (relay.py)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Barriers of the hardware by the number of the first of two, one per group of four warps: what a group waits for, what
# it lets its relay tell, and turns.  Triton uses those with low numbers.
READY, SPENT, TURNS = 10, 12, 14
WARP, GROUP, GROUPS = 32, 128, 256  # threads


def _of_consumer(name: str, text: str, code: str) -> str:
    """A function of a consumer of two groups: PTX in which `group` is the number of a thread's group."""
    return f'''@gluon.jit
def {name}():
    """{text}"""
    thread = gl.arange(0, {GROUPS}, gl.BlockedLayout([1], [32], [{GROUPS // WARP}], [0]))
    gl.inline_asm_elementwise(
        "{{ .reg .b32 group; shr.u32 group, $1, 7; {code}mov.b32 $0, $1; }}",
        "=r,r",
        [thread],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
'''


def _of_relay(name: str, text: str, first: int) -> str:
    """A function of a relay, which meets its group at a barrier."""
    return f'''@gluon.jit
def {name}(GROUP: gl.constexpr):
    """{text}"""
    lane = gl.arange(0, {WARP}, gl.BlockedLayout([1], [32], [1], [0]))
    gl.inline_asm_elementwise(
        f"bar.sync {{{first} + GROUP}}, {GROUP + WARP}; mov.b32 $0, $1;",
        "=r,r",
        [lane],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
'''


_ALL = {
    "_await_relay": _of_consumer(
        "_await_relay",
        "Each group of four warps waits until its relay has waited.",
        f"add.u32 group, group, {READY}; bar.sync group, {GROUP + WARP}; ",
    ),
    "_tell_relay": _of_consumer(
        "_tell_relay",
        "Each group of four warps lets its relay arrive, and goes on.",
        f"add.u32 group, group, {SPENT}; bar.arrive group, {GROUP + WARP}; ",
    ),
    "_open_turns": _of_consumer(
        "_open_turns",
        "The second group lets the first one issue products.",
        f"{{ .reg .pred second; setp.ne.u32 second, group, 0; @second bar.arrive {TURNS}, {GROUPS}; }} ",
    ),
    "_take_turn": _of_consumer(
        "_take_turn",
        "Each group waits until it may issue products.",
        f"add.u32 group, group, {TURNS}; bar.sync group, {GROUPS}; ",
    ),
    "_pass_turn": _of_consumer(
        "_pass_turn",
        "Each group lets the other one issue products.",
        f"sub.u32 group, {TURNS + 1}, group; bar.arrive group, {GROUPS}; ",
    ),
    "_keep_branch_of_both": _of_consumer(
        "_keep_branch_of_both",
        "Keeps a branch around what follows, which the compiler else computes in all tiles to select by the condition.",
        "",
    ),
    "_tell_group": _of_relay("_tell_group", "Lets a group of four warps go on, which waits for its relay.", READY),
    "_await_group": _of_relay("_await_group", "Waits until a group of four warps lets its relay arrive.", SPENT),
}
RELAY_HELPERS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType({n: (text, ()) for n, text in _ALL.items()})

__all__ = ["READY", "RELAY_HELPERS", "SPENT", "TURNS"]
