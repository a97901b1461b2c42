"""With the dependencies of a system without torch, TVM and Triton: the algebra, its exercises, and records."""

import sys
from importlib.util import find_spec

from neptune_widgets.course import algebra

import neptune_lab as nl

assert not [name for name in ("torch", "tvm", "triton") if find_spec(name)]
term = nl.repair.solve("sum", "exp(c - r)", "r")
assert term.evaluate(2.0, {"r": 3.0}, {"r": 3.0}) == 2.0
assert algebra.by_hand(lambda t, r, now: t * 8 ** (r - now))
assert algebra.known("negative")
assert algebra.moved_sum(6)
assert nl.load_trace(sys.argv[2]).kernel is not None
