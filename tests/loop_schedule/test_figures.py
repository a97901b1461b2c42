"""The paper's figures come out of the compiler from Figure 1 (a) alone: goldens to hold beside the paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from loop_texts import figure  # pyright: ignore[reportMissingImports]

from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.outcome import Phase
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.operators import attention, softmax

Golden = Callable[[str, str], None]


def phase(sch: Schedule, key: str) -> Phase:
    (found,) = [p for p in sch.phases if p.key == key]
    return found


def derivation(sch: Schedule) -> str:
    term = phase(sch, "repair").derivation
    assert term is not None
    return term.to_text()


@pytest.fixture
def figure1() -> Schedule:
    return Schedule(softmax.figure1())


@pytest.fixture
def tiny_attention() -> Schedule:
    return Schedule(attention.causal(batch=1, heads=1, q_len=4, kv_len=4, head_dim=2))


def test_figure_1a_definition(figure1: Schedule, golden: Golden):
    golden("figure_1a.txt", figure(figure1.program))


def test_figure_1b_naive_fusion(figure1: Schedule, golden: Golden):
    figure1.rolling_update("s_sum", "s_max.j", maps="keep")
    golden("figure_1b.txt", figure(phase(figure1, "naive").program))


def test_figure_1c_rolling_update(figure1: Schedule, golden: Golden):
    figure1.rolling_update("s_sum", "s_max.j")
    figure1.retire_tags("s_max")
    golden("figure_1c.txt", figure(figure1.program))
    assert figure1.check().error == 0


def test_figure_3_split_k(figure1: Schedule, golden: Golden):
    figure1.split("s_max.j", (None, 2))
    figure1.split_k_update("s_sum", "s_max.j0")
    golden("figure_3.txt", figure(figure1.program))
    assert figure1.check()


def test_figure_14_phases_and_derivation(figure1: Schedule, golden: Golden):
    figure1.rolling_update("s_sum", "s_max.j")
    parts = [f"--- {p.key}: {p.title}\n{p.note}\n\n{figure(p.program)}" for p in figure1.phases]
    parts.append(f"--- derivation\n{derivation(figure1)}\n")
    golden("figure_14.txt", "\n".join(parts))


def test_figure_15_privatised_rolling_update(figure1: Schedule, golden: Golden):
    figure1.split("s_max.j", (None, 2))
    figure1.rolling_update("s_sum", "s_max.j0")
    figure1.retire_tags("s_max")
    golden("figure_15.txt", figure(figure1.program))
    assert figure1.check()


@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_causal_attention(tiny_attention: Schedule, template: str, golden: Golden):
    TEMPLATES[template](tiny_attention, block_q=2, block_kv=2)
    golden(f"attention_causal_{template}.txt", figure(tiny_attention.program))
    assert tiny_attention.check()


@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_derivation_of_attention(tiny_attention: Schedule, template: str, golden: Golden):
    TEMPLATES[template](tiny_attention, block_q=2, block_kv=2)
    (applied,) = [
        a for a in tiny_attention.history if a.step.primitive == template and ("block", "acc") in a.step.arguments
    ]
    terms = [p.derivation for p in applied.outcome.phases if p.derivation is not None]
    assert len(terms) == 1
    golden(f"attention_causal_{template}_derivation.txt", terms[0].to_text() + "\n")


def computing_lines(program: Program) -> list[str]:
    return [line.strip() for line in figure(program).splitlines() if "=" in line and "for " not in line]


def test_the_repair_changes_one_statement_of_the_naive_program_and_the_tags(figure1: Schedule):
    figure1.rolling_update("s_sum", "s_max.j")
    assert computing_lines(phase(figure1, "naive").program) == [
        "xmax[i] = max(xmax[i], inp[i, j])",
        "xsum[i] += exp(inp[i, j] - xmax[i])",
    ]
    assert computing_lines(figure1.program) == [
        "xmax⟨j⟩[i] = max(xmax⟨j-1⟩[i], inp[i, j])",
        "xsum[i] = (",
        "exp(xmax⟨j-1⟩[i] - guard(xmax⟨j⟩[i], -inf, where(j == 3, -inf, 0))) * xsum[i]",
        "+ exp(inp[i, j] - guard(xmax⟨j⟩[i], -inf, where(j == 3, -inf, 0))))",
    ]
