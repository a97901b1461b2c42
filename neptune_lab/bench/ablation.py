"""Our kernel with one option changed, to measure its effect (Neptune, Figure 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neptune_lab.bench.measured import DEFAULT, NO_RECORD, OURS
from neptune_lab.bench.setups import Setup
from neptune_lab.htile_passes import PASSES

# The setups that are ablated: the paper's two, and one for each feature that they lack.
ABLATED = (
    "global_pf-512", "causal_pf-512", "causal_pf-8192", "gqa_pf-8192", "softcap_pf-8192", "window_pf-8192",
    "gqa_dc-8192", "l2_norm-256x131072", "performer-8192", "g12",
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A way to compile a setup.

    Args:
        name: in the results.
        template: None: by shape.
        options: fields of the template's config and of `CodeOptions`, by name; those two need TVM, which a machine
            that measures kernels compiled elsewhere may lack.
        tuned: what `compile` chooses, with the tuning records (True) or as if there were none of these very sizes
            (False); None: the template and options here.
    """

    name: str
    template: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tuned: bool | None = None

    @property
    def kind(self) -> str:
        """Its kind among contestants."""
        return "ablation" if self.tuned is None else "ours"


TUNED, UNTUNED = Variant(OURS, tuned=True), Variant(NO_RECORD, tuned=False)


def variants(setup: Setup) -> tuple[Variant, ...]:
    """Our kernel, tuned and untuned; if the setup is ablated, also with default options, and with one change each."""
    if setup.name not in ABLATED:
        return (TUNED, UNTUNED)
    templates = [Variant(name, name) for name in ("rolling_update", "split_k_update")]
    without = [Variant(f"without {name}", options={"disable_passes": (name,)}) for name in PASSES]
    code = [
        Variant("descriptors", options={"loads": "descriptors"}),
        Variant("pointers", options={"loads": "pointers"}),
        Variant("two halves in one program", options={"interleave": 2}),
        Variant("the next kernel starts early", options={"dependent_launch": True}),
    ]
    if setup.row.startswith("softcap"):
        code += [
            Variant("tanh by exp2", options={"tanh": "exp2"}),
            Variant("tanh.approx", options={"tanh": "hardware"}),
        ]
    return (TUNED, UNTUNED, Variant(DEFAULT), *templates, *without, *code)
