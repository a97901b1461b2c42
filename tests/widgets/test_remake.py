"""An operator made again with other arguments in the page: what can be changed, what is refused, what becomes of the
schedule, and the way back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from neptune_widgets.messages import Messages
from neptune_widgets.remake import fields, remade, why_fixed
from neptune_widgets.session import Refused, Session

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, ScheduleError
from neptune_lab.operators import OPERATORS, Operator, attention, custom, rows, softmax


def values_of(operator: Operator) -> dict[str, Any]:
    return {field.name: field.value for field in fields(operator)}


def row_scale(rows: int, cols: int = 8, factor: float = 2.0) -> Operator:
    """An operator of one's own."""
    from tvm import te

    x = te.placeholder((rows, cols), "float32", name="x")
    j = te.reduce_axis((0, cols), name="j")
    total = te.compute((rows,), lambda i: te.sum(x[i, j], axis=j), name="total")
    out = te.compute((rows, cols), lambda i, j: x[i, j] / total[i] * te.const(factor, "float32"), name="out")
    return custom("row_scale", [x], [out])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_of_the_library_can_be_made_with_twice_its_columns(name):
    sizes = {"seq": 16} if "seq" in name or name.startswith("attention") else {}
    if name == "attention.general":
        sizes = {"batch": 1, "heads": 1, "q_len": 16, "kv_len": 16, "head_dim": 8}
    elif sizes:
        sizes |= {"head_dim": 8, "batch": 1}
    operator = OPERATORS[name](**sizes)
    known = values_of(operator)
    changed = next(n for n in ("kv_len", "cols", "n", "seq") if n in known)
    made = remade(operator, {changed: 2 * known[changed]})
    assert values_of(made) == {**known, changed: 2 * known[changed]}
    assert made.program != operator.program
    inputs = list(made.random_inputs().values())
    assert np.isfinite(made.reference(*inputs)[0] if len(made.outputs) > 1 else made.reference(*inputs)).all()


def test_a_preset_is_made_with_other_sizes():
    known = values_of(attention.preset("gqa_dc", seq=256))
    assert (known["heads"], known["kv_heads"], known["q_len"], known["kv_len"]) == (64, 8, 1, 256)
    made = remade(attention.preset("gqa_dc", seq=256), {"heads": 16, "kv_heads": 2, "kv_len": 512})
    assert [t.shape for t in made.inputs] == [(1, 16, 1, 128), (1, 2, 512, 128), (1, 2, 512, 128)]
    assert made.params["causal"] is False


def test_a_scale_that_follows_from_the_width_follows_from_the_new_one():
    operator = attention.causal(seq=16, head_dim=16)
    assert operator.params["scale"] == 0.25
    assert values_of(operator)["scale"] is None
    assert remade(operator, {"head_dim": 64}).program == attention.causal(seq=16, head_dim=64).program
    own = attention.causal(seq=16, head_dim=16, scale=0.3)
    assert remade(own, {"head_dim": 64}).program == attention.causal(seq=16, head_dim=64, scale=0.3).program


def test_an_option_can_be_left_empty():
    operator = attention.causal(seq=16, scale=0.5)
    assert remade(operator, {"scale": None}).program == attention.causal(seq=16).program
    with pytest.raises(DefinitionError, match="heads=None: expected a whole number"):
        remade(operator, {"heads": None})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": 0}, "rows=0: expected a positive integer"),
        ({"rows": 2.5}, r"rows=2.5: expected a whole number"),
        ({"rows": True}, "rows=True: expected a whole number"),
        ({"rows": 2**31}, "expected a whole number of at most 2,147,483,647"),
        ({"rows": "8"}, "expected a whole number"),
        ({"dtype": "float64x"}, "expected one of bfloat16, float16"),
        ({"dtype": "float64"}, "dtype="),
        ({"name": "x"}, "there is no argument 'name' to change"),
    ],
)
def test_values_that_are_none_of_the_argument_are_refused(values, message):
    with pytest.raises(DefinitionError, match=message):
        remade(rows.softmax(4, 8), values)


def test_a_traced_function_is_traced_again():
    def scaled(x, w, eps=1e-6):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w

    operator = nl.from_torch(scaled, torch.randn(4, 32), torch.randn(32), 1e-3)
    assert values_of(operator) == {"x": "float32[4,32]", "w": "float32[32]", "eps": 1e-3}
    made = remade(operator, {"x": "float16[8, 64]", "w": "float16[64]", "eps": 0.5})
    assert [(t.shape, t.dtype) for t in made.inputs] == [((8, 64), "float16"), ((64,), "float16")]
    x, w = (made.random_inputs()[name] for name in ("x", "w"))
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 0.5) * w.astype(np.float64)
    np.testing.assert_allclose(made.reference(x, w), expected, rtol=1e-9)
    assert values_of(made)["eps"] == 0.5
    assert [f.title.partition(" in ")[0] for f in made.python] == [
        f.title.partition(" in ")[0] for f in operator.python
    ]
    with pytest.raises(DefinitionError, match="33"):
        remade(operator, {"w": "float32[33]"})
    for text in ("float32", "__import__('os')", "float32[4,32] eps=1", "float32[-1,32]"):
        with pytest.raises(DefinitionError, match="expected a dtype and sizes"):
            remade(operator, {"x": text})
    with pytest.raises(DefinitionError, match=r"expected at most 268,435,456"):
        remade(operator, {"x": "float32[65536,65536]"})


@pytest.mark.nightly
def test_several_tensors_and_modules_are_named():
    class Twice(torch.nn.Module):
        def forward(self, *parts):
            return torch.softmax(parts[0] + parts[1], -1)

    operator = nl.from_torch(Twice(), torch.randn(2, 8), torch.randn(2, 8))
    assert values_of(operator) == {"parts0": "float32[2,8]", "parts1": "float32[2,8]"}
    assert remade(operator, {"parts0": "float32[4,8]", "parts1": "float32[4,8]"}).outputs[0].shape == (4, 8)


def test_what_cannot_be_made_again_says_why():
    def near(b, h, q, kv):
        return q - kv <= 8

    assert "mask_mod cannot be called again" in why_fixed(attention.general(1, 1, 16, 16, 8, mask_mod=near))
    assert "fixed shapes" in why_fixed(row_scale(4))
    nested = nl.from_torch(lambda pair: torch.softmax(pair[0] + pair[1], -1), (torch.randn(2, 8), torch.randn(2, 8)))
    assert "neither tensors nor numbers" in why_fixed(nested)
    # A namesake of the library's operators is not taken for one of them.
    from tvm import te

    x = te.placeholder((2, 4), "float32", name="x")
    namesake = custom("softmax", [x], [te.compute((2, 4), lambda i, j: x[i, j] * 2.0, name="out")])
    assert fields(namesake) == []
    with pytest.raises(DefinitionError, match="softmax cannot be made again"):
        remade(namesake, {"rows": 4})


def test_a_function_that_makes_an_operator_can_be_explored():
    explorer = nl.explore(row_scale, rows=4, cols=16, sample={"rows": 2, "cols": 4})
    panes = json.loads(explorer.payload)["panes"]["operator"]
    assert [(f["name"], f["kind"], f["value"]) for f in panes["fields"]] == [
        ("rows", "int", 4), ("cols", "int", 16), ("factor", "number", 2.0)
    ]  # fmt: skip
    assert panes["fixed"] == ""
    session = explorer._session
    session.remake({"cols": 32, "factor": 3.0})
    assert session.operator.inputs[0].shape == (4, 32)
    # The sample has its own sizes, and the new factor.
    assert session.sample.inputs[0].shape == (2, 4)
    x = np.ones((2, 4))
    np.testing.assert_allclose(session.sample.reference(x), x * 3 / 4)
    with pytest.raises(ScheduleError, match="explore has no argument 'rows'"):
        nl.explore(row_scale(4), rows=4)
    with pytest.raises(ScheduleError, match="sample has arguments by name"):
        nl.explore(row_scale(4), sample={"rows": 4})
    with pytest.raises(DefinitionError, match="returned list, expected an operator"):
        nl.explore(lambda rows: [rows], rows=4)
    with pytest.raises(
        DefinitionError, match="<lambda> needs cols: expected a function that makes an operator"
    ) as told:
        nl.explore(lambda rows, cols: softmax.figure1(rows, cols), rows=4)
    assert "nl.from_torch(function, *inputs)" in str(told.value)


def test_a_module_is_no_function_that_makes_an_operator():
    torch = pytest.importorskip("torch")
    with pytest.raises(DefinitionError, match="Linear needs input: expected a function that makes an operator"):
        nl.explore(torch.nn.Linear(4, 4))


def test_a_sample_without_its_function_is_dropped_and_that_is_said():
    session = Session(nl.Schedule(softmax.figure1(2, 4)), sample=softmax.figure1(2, 4))
    assert "sample at small sizes is of the old operator" in session.remake({"cols": 8})
    assert session.sample is None
    session.undo()
    assert session.sample is not None


def test_the_steps_stay_and_an_edit_is_undone():
    kernel = nl.compile(attention.causal(heads=2, seq=64, head_dim=16), block_q=16, block_kv=32, validate="none")
    session = Session(kernel.schedule, kernel)
    said = session.remake({"q_len": 128, "kv_len": 128})
    assert said == f"The same {len(kernel.schedule.steps)} steps as before."
    assert session.schedule.steps == kernel.schedule.steps
    assert session.kernel.schedule.operator.inputs[0].shape == (1, 2, 128, 16)
    assert [s.template for s in session.trace.steps] == [s.template for s in kernel.trace.steps]
    assert session.schedule.check().equal
    assert session.kernel.relative_error() < 1e-3
    session.undo()
    assert session.kernel.source == kernel.source
    assert session.operator is kernel.schedule.operator
    session.redo()
    assert session.operator.params["kv_len"] == 128
    session.remake({"kv_len": 128})
    assert session.undoable == 1, "nothing changed"


def test_steps_that_are_refused_at_the_new_sizes_give_way_to_the_template():
    schedule = nl.Schedule(softmax.figure1(4, 8))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    schedule.split("s_max.j", [2, 4])
    session = Session(schedule)
    said = session.remake({"cols": 4096})
    assert said.startswith("Scheduled anew by its template. ")
    assert session.kernel is not None
    session.undo()
    assert session.schedule.steps == schedule.steps
    assert session.remake({}, anew=True).startswith("Scheduled anew by its template.")
    assert session.schedule.steps != schedule.steps


def test_a_page_hears_of_it_and_of_refusals():
    sent: list[dict[str, Any]] = []
    session = Session(nl.Schedule(softmax.figure1(2, 4)))
    page = Messages(session, sent.append, lambda *_: None)
    page.answer({"kind": "remake", "seq": 1, "values": {"rows": 4}})
    page.answer({"kind": "remake", "seq": 2, "values": {"rows": -4}})
    page.answer({"kind": "remake", "seq": 3, "values": [4]})
    edited, refused, failed = sent
    assert (edited["kind"], edited["note"], edited["seq"]) == ("edited", "The same 0 steps as before.", 1)
    assert json.loads(edited["payload"])["trace"]["operator"]["inputs"][0]["shape"] == [4, 4]
    assert refused["kind"] == "refused"
    assert "rows=-4: expected a positive integer" in refused["error"]["message"]
    assert failed["message"] == "remake: values is list, an object was expected"
    assert session.operator.params["rows"] == 4
    with pytest.raises(Refused):
        session.remake({"cols": "4"})
