"""Bytes and operations of a program, from its definition to its kernel, and the roofline's time: why fusion pays."""

from __future__ import annotations

from neptune_lab.traffic.loops import of_loops, operations
from neptune_lab.traffic.record import Roofline, StageTraffic, TensorTraffic, Traffic
from neptune_lab.traffic.steps import TrafficRecord, kernel_traffic, traffic_of
from neptune_lab.traffic.tiles import Chip, of_tiles

__all__ = [
    "Chip",
    "Roofline",
    "StageTraffic",
    "TensorTraffic",
    "Traffic",
    "TrafficRecord",
    "kernel_traffic",
    "of_loops",
    "of_tiles",
    "operations",
    "traffic_of",
]
