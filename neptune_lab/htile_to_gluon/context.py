"""The state of one Gluon function's emission: the Triton emitter's context, with layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from neptune_lab.htile.affine import affine, is_nonnegative
from neptune_lab.htile.bounds import Interval
from neptune_lab.htile.nodes import Gather, IndexExpr, Kernel, Program
from neptune_lab.htile_to_gluon.data_bounds import DataBounds, bind
from neptune_lab.htile_to_gluon.helpers import HELPERS
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_gluon.rows import CONSUMER
from neptune_lab.htile_to_gluon.structure import Structure
from neptune_lab.htile_to_triton.context import Context
from neptune_lab.htile_to_triton.expression_text import triton_dtype
from neptune_lab.htile_to_triton.padding import Padding
from neptune_lab.htile_to_triton.scope import Draft, Scope, UniqueNames
from neptune_lab.scalar_ops import ScalarOp

# What an emitted module imports.
MODULE_NAMES = frozenset(
    {"gl", "gluon", "mbarrier", "tma", "fence_async_shared", "warpgroup_mma", "warpgroup_mma_wait", "TensorDescriptor"}
)
# In the names of layouts of a consumer of two groups of warps.
WHOLE = "_OF_TWO"
_HELPER = re.compile(rf"\b({'|'.join(name for name, (text, _) in HELPERS.items() if f'def {name}_gluon(' in text)})\(")


@dataclass(frozen=True, slots=True)
class SizeParameters:
    """Parameters of a kernel's functions for what is known at the launch only.

    Args:
        sizes: by size.
        together: of how many heads run at the same time.
    """

    sizes: dict[str, str]
    together: str

    @classmethod
    def of(cls, program: Program, names: UniqueNames) -> SizeParameters:
        """Of a program, with names that are not taken."""
        return cls({size.name: names.fresh(size.name) for size in program.sizes}, names.fresh("together"))

    def used_in(self, texts: Iterable[str]) -> list[str]:
        """Those in a function's text, in order."""
        words = {word for text in texts for word in re.findall(r"\w+", text)}
        return [name for name in (*self.sizes.values(), self.together) if name in words]


class GluonContext(Context):
    """The state of one function's emission.

    A tile of n columns has the layout of a warp group's product (`TILE_n`).  A vector of rows has a slice of the
    leading product's layout (`ROWS_n`), a vector of columns a slice of its own tile's (`COLUMNS_n`).

    Args:
        helpers: module-level helpers in use so far, with the nodes that use them; extended.
        taken: names of the module's functions.
        columns: columns of the leading product.
        parameters: for what is known at the launch only; None: there is no such thing.
        bounds: the bounds of loops that an earlier kernel stored.
    """

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        structure: Structure,
        helpers: dict[str, dict[str, None]],
        taken: set[str],
        options: GluonOptions,
        columns: int,
        parameters: SizeParameters | None = None,
        bounds: DataBounds | None = None,
    ) -> None:
        # The copy engine loads the tiles for which the Triton emitter makes host descriptors.
        emit = replace(options.emit, loads="host_descriptors")
        super().__init__(program, kernel, helpers, UniqueNames(taken | MODULE_NAMES), emit)
        self.bounds = bounds or {}
        bind(self.envs, self.bounds)
        self.padding = Padding(program, kernel, one_width=False)
        self.structure = structure
        self.kind = "8" if structure.eights else WHOLE if structure.whole else ""  # of the layouts' names
        self.gluon = options
        self.ahead: dict[Gather, str] = {}  # what was read before a product was waited for
        self.fuses = False  # whether `a * b + c` is emitted as one operation
        self.columns = columns  # of the leading product
        self.layouts: dict[str, None] = {}
        for env in self.envs:
            env[CONSUMER] = Interval(0, structure.consumers - 1)
        self.root = Scope(None, frozenset({CONSUMER, *(size.name for size in program.sizes)}))
        self.scope = self.root
        name = self.names.fresh("consumer")
        self.variables[CONSUMER] = (name, Draft([name], kernel.name))
        parameters = parameters or SizeParameters.of(program, self.names)
        self.together = parameters.together
        self.at_launch = False  # whether the launcher says how many heads run at the same time, whatever the loops
        self.sizes = dict(parameters.sizes)
        for size, parameter in parameters.sizes.items():
            self.variables[size] = (parameter, Draft([], kernel.name))

    def name_bounds(self) -> None:
        """Names the parameters of the tensors that hold bounds of loops."""
        for tensor in dict.fromkeys(access.tensor for access, _ in self.bounds.values()):
            self.pointers[tensor] = self.names.fresh(f"{tensor}_ptr")

    def is_nonnegative(self, expr: IndexExpr) -> bool:
        """Whether an index expression is proven to be 0 or more here, at all sizes."""
        form = affine(expr)
        return all(is_nonnegative(form, env) for env in self.envs)

    @contextmanager
    def fusing(self, *, on: bool = True) -> Iterator[None]:
        """Inside, a sum of a product and a term is one operation, which rounds once."""
        before, self.fuses = self.fuses, on
        try:
            yield
        finally:
            self.fuses = before

    def tile_layout(self, columns: int) -> str:
        """The name of the layout of a tile with that many columns."""
        return self._layout(f"TILE{self.kind}_{columns}")

    def rows_layout(self, columns: int | None = None) -> str:
        """The name of the layout of a vector of rows that broadcasts with tiles of that many columns (None: of the
        leading product's, which variables have)."""
        return self._layout(f"ROWS{self.kind}_{columns or self.columns}")

    def columns_layout(self, columns: int) -> str:
        """The name of the layout of a vector of columns."""
        return self._layout(f"COLUMNS{self.kind}_{columns}")

    def operand_layout(self, columns: int) -> str:
        """The name of the layout of a left operand of a product with that many columns."""
        return self._layout(f"LEFT{self.kind}_{columns}")

    def layouts_of_halves(self, columns: int) -> tuple[str, str]:
        """As `tile_layout` and `operand_layout`, of a product of 16 bits in a kernel of others."""
        return self._layout(f"TILE_{columns}"), self._layout(f"LEFT_{columns}")

    def _layout(self, name: str) -> str:
        self.layouts[name] = None
        return name

    def function(self, row: ScalarOp) -> str:
        """The name or symbol of an operation in Gluon, before `spelled`; "" if it has none."""
        return row.triton if row.gluon else ""


def gluon_dtype(dtype: str) -> str:
    """Gluon's name of a dtype."""
    return spelled(triton_dtype(dtype))


def spelled(text: str) -> str:
    """A line of Triton in Gluon, with Gluon's names of the functions."""
    return _HELPER.sub(r"\1_gluon(", re.sub(r"\btl\.", "gl.", text))


def layout_lines(names: set[str]) -> list[str]:
    """Module-level constants for the layouts that are used."""
    out: list[str] = []
    for name in sorted(names, key=lambda n: (int(n.rsplit("_", 1)[1]), n)):
        kind, columns = name.rsplit("_", 1)
        # An instruction sums 32 bytes of each row; a register of the left operand has 4.
        depth, adjacent = (32, 4) if kind.endswith("8") else (16, 2)
        warps = 8 if kind.endswith(WHOLE) else 4
        tile = f"gl.NVMMADistributedLayout([3, 0], [{warps}, 1], [16, {columns}, {depth}])"
        text = {
            "TILE": tile,
            "ROWS": f"gl.SliceLayout(1, {tile})",
            "COLUMNS": f"gl.SliceLayout(0, {tile})",
            "LEFT": f"gl.DotOperandLayout(0, {tile}, {adjacent})",
        }[kind.removesuffix("8").removesuffix(WHOLE)]
        out.append(f"{name} = gl.constexpr({text})")
    return out
