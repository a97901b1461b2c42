"""The pane that plays runs: its numbers are right in the end, and marked as the tag tables mark them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from neptune_widgets import payload, tags
from neptune_widgets.panes import play
from neptune_widgets.session import Session
from tvm import te

import neptune_lab as nl
from neptune_lab.operators import attention, custom, norms, softmax
from neptune_lab.pipeline.playing_tiles import play_tiles


def figure1() -> nl.Schedule:
    schedule = nl.Schedule(softmax.figure1(rows=2, cols=4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    return schedule


def scaled_norm() -> nl.Schedule:
    """A sum of squares over the largest magnitude, of a user's own."""
    x = te.placeholder((4, 16), "float32", name="x")
    j, k = te.reduce_axis((0, 16), name="j"), te.reduce_axis((0, 16), name="k")
    largest = te.compute((4,), lambda i: te.max(te.abs(x[i, j]) + 1.0, axis=j), name="largest")
    norm = te.compute((4,), lambda i: te.sum((x[i, k] / largest[i]) * (x[i, k] / largest[i]), axis=k), name="norm")
    return nl.templates.rolling_update(nl.Schedule(custom("scaled_norm", [x], [norm])), block_kv=4)


CASES = {
    "figure 1": (figure1, [1]),
    "attention": (lambda: nl.pipeline.schedule(attention.causal(1, 4, 256, head_dim=64)), [8, 9]),
    "split-k": (lambda: nl.pipeline.schedule(attention.full(1, 4, q_len=1, kv_len=2048, head_dim=64)), [5, 6]),
    "layer norm": (lambda: nl.pipeline.schedule(norms.layer_norm_statistics(64, 256)), [4]),
    "scaled norm": (scaled_norm, None),
}


def values(side: dict[str, Any], name: str) -> np.ndarray:
    """What a tensor holds in the end."""
    tensor = next(t for t in side["tensors"] if t["name"] == name)
    found = np.full(int(np.prod(tensor["shape"])), np.nan)
    for frame in tensor["frames"]:
        for write in frame:
            found[write[0]] = float(write[1])
    return found.reshape(tensor["shape"])


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CASES)
def test_the_repaired_program_ends_at_the_reference_and_the_naive_one_does_not(name: str):
    make, steps = CASES[name]
    session = Session(make())
    films = json.loads(json.dumps(play.films(session), allow_nan=False))
    listed = play.plays(session)["plays"]
    assert [f["step"] for f in films] == [p["step"] for p in listed]
    films = [f for f in films if f["step"] >= 0]
    if steps is not None:
        assert [f["step"] for f in films] == steps
    schedule, _ = tags.shown(session.schedule)
    inputs = tags.default_inputs(schedule.operator)
    outputs = schedule.operator.reference(*inputs.values())
    names = [t.name for t in schedule.operator.outputs]
    wanted = dict(zip(names, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
    for film in films:
        naive, repaired = film["sides"]
        assert (naive["wrong"], repaired["wrong"]) == (True, False)
        off = []
        for output in schedule.operator.outputs:
            tolerance = 2e-3 if output.dtype == "float16" else 1e-5
            np.testing.assert_allclose(
                values(repaired, output.name), wanted[output.name], rtol=tolerance, atol=tolerance
            )
            off.append(np.abs(values(naive, output.name) - wanted[output.name]).max())
        assert max(off) > 1e-3
        marked = [w for t in repaired["tensors"] for f in t["frames"] for w in f if len(w) > 5 and w[5] is False]
        assert marked == []
        assert any(w[5] is False for t in naive["tensors"] for f in t["frames"] for w in f if len(w) > 5)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", CASES)
def test_marks_are_those_of_the_tag_tables(name: str):
    session = Session(CASES[name][0]())
    schedule, note = tags.shown(session.schedule)
    inputs = tags.default_inputs(schedule.operator)
    compared = 0
    for film in [f for f in play.films(session) if f["step"] >= 0]:
        for side in film["sides"]:
            table = tags.table(schedule, film["step"], side["phase"], None, inputs, note)
            cells = {
                (r["label"], column): cell
                for r in table["rows"]
                if r["kind"] == "value"
                for column, cell in zip(table["columns"], r["cells"], strict=True)
            }
            for tensor in side["tensors"]:
                for write in (w for frame in tensor["frames"] for w in frame if len(w) > 2):
                    cell = cells.get((side["pool"][write[2]], side["pool"][write[3]]))
                    if cell is None:  # of a row that the table leaves out
                        continue
                    compared += 1
                    assert write[4:6] == [cell["sign"], cell["right"]], (film["step"], side["phase"], cell)
                    assert float(write[1]) == pytest.approx(float(cell["value"]), rel=1e-3)
                    if write[5] is False:
                        assert float(write[6]) == pytest.approx(float(cell["should_be"]), rel=1e-3)
    assert compared > 20


def test_a_page_asks_for_a_run_and_a_saved_one_has_them_all(page_of):
    page = page_of(figure1())
    assert page.payload["panes"]["play"] == {
        "plays": [{"step": 1, "what": "rolling_update('s_sum', 's_max.j', maps='keep')", "block": "s_sum"}],
        "note": "",
    }
    answer = page.ask("play", step=1)
    assert answer["kind"] == "play"
    static = json.loads(payload.static(Session(figure1())).text)["panes"]
    assert static["play"] == page.payload["panes"]["play"]
    assert static["play_kept"]["films"] == [json.loads(json.dumps(answer["film"]))]
    assert page.ask("play", step=7) | {"seq": 0} == {
        "kind": "play_error",
        "seq": 0,
        "message": "step 7 cannot be played",
    }


def test_edited_inputs_are_played(page_of):
    page = page_of(figure1())
    (inp,) = page.payload["tags"]["inputs"]
    doubled = [[2 * v for v in row] for row in inp["values"]]
    before, after = (page.ask("play", step=1, **more)["film"] for more in ({}, {"inputs": {"inp": doubled}}))
    for side in (0, 1):
        np.testing.assert_allclose(values(after["sides"][side], "inp"), 2 * values(before["sides"][side], "inp"))
        np.testing.assert_allclose(values(after["sides"][side], "xmax"), 2 * values(before["sides"][side], "xmax"))
    answer = page.ask("play", step=1, inputs={"inp": [[1]]})
    assert answer["kind"] == "play_error"
    assert "has shape (1, 1), expected (2, 4)" in answer["message"]


def test_a_program_without_repairs_plays_alone(page_of):
    page = page_of(nl.Schedule(softmax.figure1(rows=2, cols=4)))
    film = page.ask("play", step=0)["film"]
    (side,) = film["sides"]
    assert (side["phase"], side["wrong"]) == ("definition", False)
    assert values(side, "xmax").shape == (2,)


def test_what_is_too_large_says_what_would_help():
    x = te.placeholder((512, 512), "float32", name="x")
    j = te.reduce_axis((0, 512), name="j")
    total = te.compute((512,), lambda i: te.sum(x[i, j], axis=j), name="total")
    static = json.loads(payload.static(Session(nl.Schedule(custom("row_sum", [x], [total])))).text)
    assert "sample=" in static["panes"]["play"]["error"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["attention", "split-k", "layer norm"])
def test_tiles_end_at_the_reference(name: str):
    session = Session(CASES[name][0]())
    schedule, _ = tags.shown(session.schedule)
    inputs = tags.default_inputs(schedule.operator)
    run = play_tiles(schedule, inputs)
    outputs = schedule.operator.reference(*inputs.values())
    for output, wanted in zip(
        schedule.operator.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True
    ):
        tolerance = 2e-3 if output.dtype == "float16" else 1e-5
        np.testing.assert_allclose(run.values(output.name), wanted, rtol=tolerance, atol=tolerance)
    assert all(f.loop.startswith(("tile:", "for:", "kernel:")) for f in run.frames)
    # A frame of one instance writes one tensor.
    for n, frame in enumerate(run.frames):
        if frame.loop.startswith("tile:"):
            written = [t.name for t in run.tensors if t.kind != "input" and t.frames[n]]
            assert len(written) == 1
            assert frame.name.startswith(written[0])


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["attention", "split-k", "layer norm"])
def test_results_of_tiles_are_compared_with_the_definition(name: str, monkeypatch):
    session = Session(CASES[name][0]())
    schedule, _ = tags.shown(session.schedule)
    inputs = tags.default_inputs(schedule.operator)
    outputs = {t.name for t in schedule.operator.outputs}

    def judged(film: dict) -> list[list]:
        """The last write of each element of a result; nothing is said of other tensors and earlier writes."""
        found = []
        for tensor in film["sides"][0]["tensors"]:
            last = {write[0]: write for frame in tensor["frames"] for write in frame}
            told = [write for frame in tensor["frames"] for write in frame if len(write) > 2]
            assert told == ([] if tensor["name"] not in outputs else list({id(w): w for w in told}.values()))
            assert tensor["name"] not in outputs or {id(w) for w in told} == {id(w) for w in last.values()}
            found += told
        return found

    right = judged(play._tiles(schedule, inputs))
    assert right
    assert all(write[5] is True for write in right)
    # A definition that has other numbers is departed from, and the page gets them.
    real = type(schedule.operator).reference

    def other(operator, *arrays):
        results = real(operator, *arrays)
        return tuple(r + 1 for r in results) if isinstance(results, tuple) else results + 1

    monkeypatch.setattr(type(schedule.operator), "reference", other)
    wrong = judged(play._tiles(schedule, inputs))
    assert all(write[5] is False and abs(write[6] - float(write[1]) - 1) < 0.05 for write in wrong)


@pytest.mark.nightly
def test_tiles_of_a_kernel_are_listed_asked_for_and_kept(page_of, softmax_kernel):
    page = page_of(softmax_kernel)
    assert page.payload["panes"]["play"]["plays"][-1] == {"step": -1, "what": "tiles", "block": ""}
    film = page.ask("play", step=-1)["film"]
    assert film["sides"][0]["phase"] == "htile"
    lines = {line[0] for line in page.payload["trace"]["lines"]}
    assert all(f["loop"] in lines for f in film["sides"][0]["frames"])
    kept = json.loads(payload.static(Session(softmax_kernel.schedule, softmax_kernel)).text)["panes"]["play_kept"][
        "films"
    ]
    assert kept[-1] == json.loads(json.dumps(film))
