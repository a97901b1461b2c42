"""Algebraic correction: derive the repair term of a fused reduction (sections 4.1 and 4.2 of the paper).

>>> term = solve("sum", "exp(c - r)", producers=["r"])
>>> term.as_record()["h"]
"t*exp(r - r')"
"""

from neptune_lab.errors import RepairError
from neptune_lab.repair.change_of_variables import Separation
from neptune_lab.repair.derive import Derivation
from neptune_lab.repair.guard import Guard
from neptune_lab.repair.invert import Inverse
from neptune_lab.repair.limit import time_limit
from neptune_lab.repair.prove import Proof
from neptune_lab.repair.ranges import at_most_one
from neptune_lab.repair.render import Line, Step, latex, mathml, text
from neptune_lab.repair.solve import solve
from neptune_lab.repair.supplied import Counterexample, WrongRepair, in_names, prove_supplied
from neptune_lab.repair.term import RepairTerm, Unproved
from neptune_lab.repair.vector import solve_vector
from neptune_lab.repair.vector_term import VectorRepair

__all__ = [
    "Counterexample",
    "Derivation",
    "Guard",
    "Inverse",
    "Line",
    "Proof",
    "RepairError",
    "RepairTerm",
    "Separation",
    "Step",
    "Unproved",
    "VectorRepair",
    "WrongRepair",
    "at_most_one",
    "in_names",
    "latex",
    "mathml",
    "prove_supplied",
    "solve",
    "solve_vector",
    "text",
    "time_limit",
]
