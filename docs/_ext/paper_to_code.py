"""The paper's terms and where the code has each: the one list that docs/paper_to_code.md is written from.

`python docs/_ext/paper_to_code.py` writes the page; a test compares the two, and looks up every name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from neptune_lab.files import write_text

PAGE = Path(__file__).parents[1] / "paper_to_code.md"
ROOT = PAGE.parents[1]


@dataclass(frozen=True, slots=True)
class Row:
    """One term, experiment or example of a paper.

    Args:
        what: the paper's word or words.
        paper: sections, equations, algorithms, figures.
        names: functions, classes and modules below `neptune_lab`, with dots; or files of the repository, with slashes.
        notebooks: numbers of the course's notebooks that show it.
        note: what a reader needs besides.
    """

    what: str
    paper: str
    names: tuple[str, ...]
    notebooks: tuple[str, ...] = ()
    note: str = ""


NOTEBOOKS = {
    "00": "00_tour",
    "01": "01_rolling_update",
    "02": "02_algebra",
    "03": "03_split_k",
    "04": "04_loops_to_tiles",
    "05": "05_schedules",
    "06": "06_gpu",
    "07": "07_your_operator",
    "08": "08_beyond_attention",
}

TERMS = (
    # -- the system ---------------------------------------------------------------------------------------------------
    Row("tensor expression", "3", ("operators.base.tensor_expressions", "operators.custom.custom"), ("07",)),
    Row("schedule template", "3, A, Figure 13", ("loop_schedule.templates.choose.choose_template",), ("05",)),
    Row("transformation primitive", "3", ("loop_schedule.declare.Primitive",), ("05",)),
    Row("loop-scalar IR", "3, Figure 6", ("loop_ir.nodes.Program",), ("01",)),
    Row("HTile IR", "5, Figure 7", ("htile.nodes.Program",), ("04",)),
    Row("loop-to-tile translator", "5, Algorithm 3", ("loop_to_htile.translate.translate",), ("04",)),
    Row("tile optimizer", "3", ("htile_passes.run",), ("06",)),
    Row("autotuner", "3, 6", ("tuning.tune.tune",), ("06",), "by MCFuser's method, below"),
    Row("cost model", "6", ("autotune.cost_model.CostModel",), ("06",)),
    Row("empirical measurement", "6", ("runtime.measurement.measure",), ("06",)),
    # -- programs -----------------------------------------------------------------------------------------------------
    Row("loop nest", "3.1", ("loop_ir.tree.loop_nest",), ("01",)),
    Row("affine access function", "3.1", ("htile.affine.affine", "loop_schedule.affine.affine_terms")),
    Row("tag", "3.1", ("loop_ir.tags.record",), ("01",)),
    Row(
        "materialized example",
        "2, Figure 1 (d) to (f)",
        ("loop_ir.materialized_example.materialized_example",),
        ("01",),
    ),
    Row("reduce loop nest", "3.1, Eq. 2", ("loop_ir.reduction.match_reduction",), ("01",)),
    Row("reducer f", "3.1, 4.1", ("repair.reducers.Reducer",), ("02",)),
    # -- algebraic correction analysis --------------------------------------------------------------------------------
    Row("algebraic correction analysis", "4.1, Algorithm 1, lines 5, 6", ("repair.solve.solve",), ("02",)),
    Row("repair function h, repair term", "4.1", ("repair.term.RepairTerm", "repair.derive.derive"), ("02",)),
    Row("h replaces r in g", "4.1, Eq. 3", ("repair.prove.prove_replaces",), ("02",)),
    Row("h distributes with f", "4.1, Eqs. 4, 9, VALIDATEHCOMMUTATIVE", ("repair.prove.prove_distributes",), ("02",)),
    Row("inverse function of g", "4.1, Eqs. 5, 8", ("repair.invert.invert",), ("02",)),
    Row("change of variables, non-invertible g", "4.2", ("repair.change_of_variables.change_variables",), ("02",)),
    Row("tag-updating property", "4.2, Definition 4.2, D", ("repair.check.check_tag_updating",), ("02",), "by numbers"),
    # -- reduction fusion ---------------------------------------------------------------------------------------------
    Row(
        "rolling update",
        "4.2, Algorithm 1, Theorem 4.1",
        ("loop_schedule.primitives.rolling_update.rolling_update",),
        ("01", "05"),
    ),
    Row("rolling loop", "4.2", ("loop_schedule.primitives.materialize_tags.rolling_loop",), ("01",)),
    Row(
        "dataflow reorganization",
        "4.2, step 1, INLINEMAPRETURNREDUCE",
        ("loop_schedule.maps.reorganize_dataflow",),
        ("01",),
    ),
    Row("producing reductions", "4.1, 4.2", ("loop_schedule.maps.find_producers",), ("01",)),
    Row("naive loop fusion", "2, Algorithm 1, line 3", ("loop_schedule.fusion.fuse_naively",), ("01",)),
    Row(
        "MATCHREDUCEPATTERN",
        "Algorithm 1, line 4, Eq. 6",
        ("loop_schedule.reduce_pattern.match_reduce_pattern",),
        ("02",),
    ),
    Row(
        "CACHEREDUCEPREVRESULT",
        "Algorithm 1, lines 8 to 10",
        (
            "loop_schedule.primitives.materialize_tags.cache_reduction_results",
            "loop_schedule.primitives.retire_tags.retire_tags",
        ),
        ("01",),
    ),
    Row("APPLYREPAIRTERM", "Algorithm 1, line 11, Eq. 7", ("loop_schedule.repairing.apply_repair_term",), ("01",)),
    Row(
        "reduction privatization",
        "4.3, B.2, Figure 15",
        ("loop_schedule.primitives.privatize_reduction.privatize_reduction",),
        ("03",),
    ),
    Row(
        "split-k update",
        "4.3, Algorithm 2, Eq. 11, Theorem 4.4, Figures 3, 4",
        ("loop_schedule.primitives.split_k_update.split_k_update",),
        ("03",),
    ),
    Row(
        "local and global loop nests, FUSEANDPRIVATIZE",
        "4.3, Algorithm 2, lines 2 to 7",
        ("loop_schedule.primitives.split_k_update.fuse_and_privatize",),
        ("03",),
    ),
    Row(
        "REPLACETENSORREADS",
        "4.3, Algorithm 2, line 6",
        ("loop_schedule.primitives.split_k_update.replace_tensor_reads",),
        ("03",),
    ),
    # -- loops to tiles -----------------------------------------------------------------------------------------------
    Row("tileable loop nest", "5, Algorithm 3, lines 1, 2", ("loop_to_htile.translate.tileable_nest",), ("04",)),
    Row("access region", "5, Algorithm 3, lines 3, 4", ("loop_to_htile.access_regions.access_region",), ("04",)),
    Row("dimension order reconciliation", "5.1", ("loop_to_htile.dimension_order.reconcile_dimension_order",), ("04",)),
    Row("MATCHCOMPUTEPATTERN", "5, Algorithm 3, line 8", ("loop_to_htile.patterns.match_compute_pattern",), ("04",)),
    Row("loop partition", "6, 8.2", ("htile_passes.partition_masked_loops",), ("06",)),
)

EXAMPLES = (
    Row("the motivating example", "2, Figure 1, Eq. 1", ("operators.softmax.figure1",), ("01",)),
    Row("overview", "3, Figure 2", ("pipeline.compile.compile",), ("00",)),
    Row("attention's definition", "A, Figure 12", ("operators.attention_stages", "operators.attention"), ("07",)),
    Row("attention's schedule", "A, Figure 13", ("loop_schedule.templates.rolling_update",), ("05",)),
    Row("every intermediate result of Figure 1", "B.1, Figure 14", ("tests/golden/figure_14.txt",), ("01",)),
    Row("L2 norm, RMSNorm, performer", "4.4, C", ("operators.norms", "operators.performer"), ("08",)),
    Row("operators and setups", "7, Table 1", ("operators.presets", "bench.setups.all_setups"), ("06",)),
    Row(
        "comparison with compilers and libraries",
        "8.1, 8.2, Tables 2, 4, Figures 8, 16, 17",
        ("bench.tables.speedup_rows", "bench.figures.relative"),
    ),
    Row("throughput over batch", "8.3, Figures 9, 18", ("bench.figures.throughput",)),
    Row(
        "effect of each optimization", "8.4, Figure 10", ("bench.ablation.variants", "bench.figures.ablation"), ("06",)
    ),
    Row("operators other than attention", "8.5, Figure 11", ("bench.figures.rows_and_performer",), ("08",)),
    Row("numerical errors", "F, Table 5, Figure 20", ("pipeline.accuracy.accuracy",)),
)

MCFUSER = (
    Row(
        "tiling expressions, deep and flat",
        "III-A",
        ("autotune.expressions.tilings", "loop_schedule.primitives.tile_outermost.tile_outermost"),
        note="the deep order is also a primitive",
    ),
    Row("placement of loads, computations and stores", "III-B", ("autotune.dag.place",)),
    Row("pruning rules", "III-C, Figure 7", ("autotune.rules", "autotune.waterfall.waterfall")),
    Row("shared memory", "Eq. 1", ("autotune.shared_memory.total_bytes",)),
    Row("analytical model", "IV-A, Eqs. 2 to 5", ("autotune.cost_model.CostModel",)),
    Row("heuristic search", "Algorithm 1", ("autotune.search.Search",)),
    Row("GEMM chains", "Table II", ("operators.gemm_chain",)),
)

PAST = (
    Row(
        "Vector repair",
        "",
        ("repair.vector",),
        note="a matrix, used if no single h exists. The paper's solver finds no repair for mean and variance in one "
        "pass (Welford); this one does.",
    ),
    Row(
        "Loops without masked tiles",
        "",
        ("htile_passes.partition_masked_loops",),
        note="computed from a mask's affine form; also works for window masks.",
    ),
    Row(
        "A numerical check of every proof",
        "",
        ("loop_to_repair.check_lowered.check_lowered",),
        note="each repair is evaluated as written in the program, at random points, by code that shares nothing with "
        "the algebra.",
    ),
    Row(
        "Guards",
        "",
        ("repair.guard.find_guards",),
        note="singular points get a regular value, with a proof that no accumulated value is lost.",
    ),
    Row("Gluon", "", ("htile_to_gluon",), note="kernels for Hopper in which some warps load and others compute."),
)


INTRODUCTION = """\
{} terms of *Neptune: Advanced ML Operator Fusion for Locality and Parallelism on GPUs*, each with its file and its
function or class. Files are in `neptune_lab/`."""


def page() -> str:
    """The text of docs/paper_to_code.md."""
    parts = [
        "# From the paper to the code",
        INTRODUCTION.format(len(TERMS)),
        _table(TERMS, "term"),
        "## Examples and experiments",
        _table(EXAMPLES, "what"),
        "## MCFuser",
        "The tuner's method. Files are in `neptune_lab/` here too.",
        _table(MCFUSER, "term"),
        "## Beyond the papers",
        "\n".join(f"- **{row.what}** ({', '.join(f'`{n}`' for n in row.names)}): {row.note}" for row in PAST),
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Row], first: str) -> str:
    with_notebooks = any(row.notebooks for row in rows)
    heads = [first, "paper", "file", "name", *(["notebook"] if with_notebooks else [])]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        places = [place(name) for name in row.names]
        files = ", ".join(dict.fromkeys(f"`{file}`" for file, _ in places))
        names = ", ".join(f"`{name}`" for _, name in places if name)
        links = ", ".join(f"[{n}](course/{NOTEBOOKS[n]}.ipynb)" for n in row.notebooks)
        cells = [row.what + (f" ({row.note})" if row.note else ""), row.paper, files, names]
        lines.append([*cells, *([links] if with_notebooks else [])])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def place(name: str) -> tuple[str, str]:
    """The file, below `neptune_lab`, and the name in it ("" for a whole module).

    Raises:
        LookupError: there is none.

    >>> place("repair.solve.solve")
    ('repair/solve.py', 'solve')
    >>> place("autotune.rules"), place("tests/golden/figure_14.txt")
    (('autotune/rules.py', ''), ('tests/golden/figure_14.txt', ''))
    >>> place("repair.solve.sulve")
    Traceback (most recent call last):
        ...
    LookupError: neptune_lab has no 'repair.solve.sulve'
    """
    if "/" in name:
        if not (ROOT / name).exists():
            raise LookupError(f"there is no file {name}")
        return name, ""
    parts = name.split(".")
    below = ROOT / "neptune_lab"
    for depth in range(len(parts), 0, -1):
        path = below.joinpath(*parts[:depth])
        file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if not file.is_file():
            continue
        member: object = import_module(".".join(["neptune_lab", *parts[:depth]]))
        for part in parts[depth:]:
            member = getattr(member, part, None)
        if member is None:
            break
        shown = f"{file.parent.relative_to(below)}/" if file.name == "__init__.py" else str(file.relative_to(below))
        return shown, ".".join(parts[depth:])
    raise LookupError(f"neptune_lab has no {name!r}")


if __name__ == "__main__":
    write_text(PAGE, page())
