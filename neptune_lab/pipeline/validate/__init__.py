"""Translation validation: every compile's result is run against the definition, on ordinary and on special numbers."""

from neptune_lab.pipeline.validate.check import MODES, forget, repeat, structure, validate
from neptune_lab.pipeline.validate.report import Validated

__all__ = ["MODES", "Validated", "forget", "repeat", "structure", "validate"]
