"""One kernel of two nests of a backward pass, which adds to the sum of one in the order in which programs come."""

from __future__ import annotations

from neptune_lab.htile_to_gluon.joint.joining import Joined, joined
from neptune_lab.htile_to_gluon.joint.kernel import emit_joint

__all__ = ["Joined", "emit_joint", "joined"]
