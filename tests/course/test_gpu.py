"""Exercises of the notebook on the GPU, its tile maps, and what it measures as far as a CPU goes."""

from __future__ import annotations

import gc
import importlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
from neptune_widgets.course import gpu, gpu_figures, gpu_runs
from neptune_widgets.course.measured import Run
from neptune_widgets.course.tile_map import LEFT_OUT, MASKED, WHOLE, tile_map

import neptune_lab as nl
from neptune_lab.bench.clock import Samples
from neptune_lab.bench.setups import tiny_setups
from neptune_lab.errors import MeasureError
from neptune_lab.operators import attention
from neptune_lab.pipeline.facts import work

# Rates that no GPU has, so that nothing here can be right by a constant.
TFLOPS, GBPS = 500.0, 2000.0


@pytest.fixture(scope="module")
def ceilings():
    data = {"product_tflops": TFLOPS, "copy_gbps": GBPS, "sheet_gbps": 1.3 * GBPS, "sheet_tflops": 1.3 * TFLOPS}
    return Run("ceilings", data, "a GPU", "2000-01-01 00:00 UTC", {}, "a test", recorded=True)


def says(verdict, state, words=""):
    assert verdict.state == state, repr(verdict)
    assert words in repr(verdict), repr(verdict)
    assert bool(verdict.hints) == (state != "right")


class TestIntensity:
    RIDGE = TFLOPS * 1e3 / GBPS

    def test_open(self, ceilings):
        says(gpu.intensity(None, None, ceilings), "open")
        says(gpu.intensity(1024, None, ceilings), "open")

    @pytest.mark.parametrize("at_4096", [1024, 1032.4, np.float64(1030), 4096 // 4])
    def test_right(self, ceilings, at_4096):
        says(gpu.intensity(at_4096, 4 * self.RIDGE, ceilings), "right", "a GPU")
        says(gpu.intensity(at_4096, np.int64(990), ceilings), "right")

    @pytest.mark.parametrize(
        ("at_4096", "why"),
        [(2048, "twice"), (4096, "four times"), (512, "half"), (256, "a quarter"), (20, "scores"), (1e5, "too many")],
    )
    def test_wrong_intensity(self, ceilings, at_4096, why):
        says(gpu.intensity(at_4096, 4 * self.RIDGE, ceilings), "wrong", why)

    def test_wrong_length(self, ceilings):
        says(gpu.intensity(1024, self.RIDGE, ceilings), "wrong", "is the ridge")
        says(gpu.intensity(1024, 4096, ceilings), "wrong", "the ridge is at 250")
        says(gpu.intensity("many", 1000, ceilings), "wrong", "expected a number")


class TestLeastTime:
    @pytest.fixture
    def right(self):
        prefill, decoding = work(gpu.prefill().program), work(gpu.decoding().program)
        return prefill.flops / TFLOPS / 1e6, decoding.bytes / GBPS / 1e3

    def test_open(self, ceilings):
        says(gpu.least_time(None, ceilings), "open")

    def test_right(self, ceilings, right):
        says(gpu.least_time(right, ceilings), "right", "a GPU")
        says(gpu.least_time(list(right), ceilings), "right")
        says(gpu.least_time(np.array(right), ceilings), "right")

    def test_wrong(self, ceilings, right):
        prefill, decoding = right
        other = work(gpu.prefill().program).bytes / GBPS / 1e3
        says(gpu.least_time((decoding, prefill), ceilings), "wrong", "in reverse order")
        says(gpu.least_time((prefill / 1e6, decoding / 1e6), ceilings), "wrong", "another unit")
        says(gpu.least_time((prefill / 1e3, decoding), ceilings), "wrong", "another unit")
        says(gpu.least_time((other, decoding), ceilings), "wrong", "shorter of the two")
        says(gpu.least_time((prefill / 1.3, decoding), ceilings), "wrong", "datasheet")
        says(gpu.least_time((prefill + other, decoding), ceilings), "wrong", "the sum of the two")
        says(gpu.least_time((prefill * 1.7, decoding), ceilings), "wrong", "not the larger")
        says(gpu.least_time((prefill,), ceilings), "wrong", "a pair")
        says(gpu.least_time(3.0, ceilings), "wrong", "a pair")


class TestFitting:
    def test_open(self):
        says(gpu.fitting(None), "open")

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize(
        "choice",
        [
            {"block_q": 64, "block_kv": 64, "num_stages": 2},
            {"block_q": 128, "block_kv": 32, "num_stages": 3},
            {"block_q": 32, "block_kv": 64, "num_stages": 3, "num_warps": 4},
        ],
    )
    def test_right(self, choice):
        says(gpu.fitting(choice), "right", "of 163 KiB")

    @pytest.mark.nightly
    def test_wrong(self):
        says(gpu.fitting({}), "wrong", "90% are asked for")
        says(gpu.fitting({"block_q": 128, "block_kv": 128, "num_stages": 3}), "wrong", "too much")
        says(gpu.fitting({"block_q": 32, "block_kv": 32, "num_stages": 2}), "wrong", "90% are asked for")
        says(gpu.fitting({"block": 32}), "wrong", "no option 'block'")
        says(gpu.fitting(64), "wrong", "a dict")


class TestMaskedTiles:
    def by_hand(self):
        visited = masked = 0
        for i in range(0, 4096, 128):
            for j in range(0, 4096, 64):
                seen = [0 <= q - k < 1000 for q in (i, i + 127) for k in (j, j + 63)]
                apart = i + 127 < j or i - (j + 63) >= 1000
                visited += not apart
                masked += not apart and not all(seen)
        return visited, masked

    def test_open(self):
        says(gpu.masked_tiles(None), "open")

    def test_right(self):
        says(gpu.masked_tiles(self.by_hand()), "right")
        says(gpu.masked_tiles(np.array(self.by_hand())), "right")

    @pytest.mark.nightly
    def test_wrong(self):
        visited, masked = self.by_hand()
        says(gpu.masked_tiles((masked, visited)), "wrong", "in reverse order")
        says(gpu.masked_tiles((2 * visited, 2 * masked)), "wrong", "all 2 heads")
        says(gpu.masked_tiles((visited, visited - masked)), "wrong", "without a mask")
        says(gpu.masked_tiles((1056, masked)), "wrong", "the window hides")
        says(gpu.masked_tiles((visited - 9, masked)), "wrong", "too few")
        says(gpu.masked_tiles((visited + 9, masked)), "wrong", "too many")
        says(gpu.masked_tiles((visited, 64)), "wrong", "both sides")
        says(gpu.masked_tiles((visited, visited)), "wrong", "too many")
        says(gpu.masked_tiles("ab"), "wrong", "a pair")
        says(gpu.masked_tiles(("a", 1)), "wrong", "expected a number")


class TestTileMap:
    @pytest.mark.one_in(12)
    @pytest.mark.parametrize("window", [None, 192, 100, 300])
    @pytest.mark.parametrize("tiles", [(64, 64), (128, 32), (32, 128)])
    def test_agrees_with_the_mask(self, window, tiles):
        rows, columns = tiles
        sizes = {"heads": 1, "seq": 512, "head_dim": 16}
        op = attention.causal(**sizes) if window is None else attention.window(**sizes, window=window)
        found = tile_map(nl.compile(op, "rolling_update", block_q=rows, block_kv=columns).htile)
        apart = np.subtract.outer(np.arange(512), np.arange(512))
        seen = (apart >= 0) & (apart < (window or 512))
        blocks = seen.reshape(512 // rows, rows, 512 // columns, columns)
        wanted = np.where(blocks.all((1, 3)), WHOLE, np.where(blocks.any((1, 3)), MASKED, LEFT_OUT))
        np.testing.assert_array_equal(found.cells, wanted)
        assert (found.all, found.visited, found.masked) == (wanted.size, (wanted > 0).sum(), (wanted == MASKED).sum())

    def test_without_the_pass_all_are_masked(self):
        op = attention.causal(heads=1, seq=256, head_dim=16)
        found = tile_map(nl.compile(op, "rolling_update", disable_passes=("partition_masked_loops",)).htile)
        assert found.all == found.visited == found.masked

    def test_several_kernels_are_refused(self):
        split = nl.compile(attention.causal(heads=1, q_len=1, kv_len=512, head_dim=16), "split_k_update")
        with pytest.raises(MeasureError, match="expected one with a rolling loop"):
            tile_map(split.htile)


class OneCall:
    """A timer that calls everyone once, and says that each call took the same."""

    def quick(self, call):
        call()
        return 1.0

    def times(self, calls, cold):
        return {name: Samples((1.0, 2.0, 3.0)) for name in calls}


@pytest.fixture(scope="module", autouse=True)
def _objects_of_other_tests_are_not_searched():
    """A contest collects garbage when it gives tensors back, which would go over all that earlier tests have left."""
    gc.freeze()


class TestContest:
    @pytest.fixture
    def tiny(self, monkeypatch):
        setups = {setup.name: setup for setup in tiny_setups()}
        monkeypatch.setattr(gpu_runs, "_setup", setups.__getitem__)

    @pytest.mark.nightly
    @pytest.mark.usefixtures("tiny")
    def test_everyone_is_checked_and_the_result_is_json(self):
        ours = ("neptune_lab", "default options", gpu_runs.UNPARTITIONED, "rolling_update")
        row = gpu_runs.contest("causal_pf-64", ours, ("SDPA flash",), eager=True, timer=OneCall())
        assert json.loads(json.dumps(row)) == row
        assert [e["name"] for e in row["entries"]] == [*ours, "SDPA flash", "PyTorch eager"]
        for entry in row["entries"]:
            assert entry["status"] == "ok", entry
            assert 0 < entry["error"] < 2e-3
            assert entry["low_us"] <= entry["us"] <= entry["high_us"]
        assert row["flops"] > 0
        assert row["bytes"] == 4 * 2 * 64 * 16 * 2

    @pytest.mark.usefixtures("tiny")
    def test_a_wrong_kernel_has_no_time(self, monkeypatch):
        contestants = importlib.import_module("neptune_lab.bench.contestants")
        right = contestants.launchable

        def wrong(made, tensors):
            ready = right(made, tensors)
            return SimpleNamespace(call=lambda: ready.call() * 2, note="", options={}, resources=tuple)

        monkeypatch.setattr(contestants, "launchable", wrong)
        row = gpu_runs.contest("causal_pf-64", ("neptune_lab",), timer=OneCall())
        (entry,) = row["entries"]
        assert entry["status"] == "wrong"
        assert entry["us"] is None
        assert gpu_runs.entry(row, "neptune_lab") is None

    @pytest.mark.nightly
    def test_candidates_that_differ_in_tiles_alone(self):
        from neptune_lab.autotune.space import space
        from neptune_lab.target import Target

        setup = gpu_runs._setup(gpu_runs.TUNED)
        found = gpu_runs.tiles_alone(space(setup.op, Target("h200")))
        assert 30 <= len(found) <= 60
        tiles = {(c.sizes.block_q, c.sizes.block_kv, c.sizes.block_out) for c in found}
        assert len(tiles) == len(found)


class TestFigures:
    def test_rank_correlation(self):
        assert gpu_figures.rank_correlation([1, 2, 3], [10, 100, 1000]) == 1
        assert gpu_figures.rank_correlation([1, 2, 3], [3, 2, 1]) == -1
        assert gpu_figures.rank_correlation([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(3 / 10**0.5)

    def test_a_failed_kernel_leaves_a_gap_and_a_reason(self, ceilings):
        good = {"name": "neptune_lab", "status": "ok", "us": 10.0, "low_us": 9.0, "high_us": 11.0, "error": 1e-4}
        bad = {"name": "SDPA cuDNN", "status": "failed", "us": None, "note": "no such backend", "error": None}
        row = {"setup": "causal_pf-512", "flops": 1e9, "bytes": 1e7, "kv_bytes": 1e6, "entries": [good, bad]}
        run = Run("lengths", [row], "a GPU", "", {}, "", recorded=True)
        assert gpu_figures.times(run)[1][2] == "failed: no such backend"
        figure, words = gpu_figures.lengths(run)
        assert "a GPU" in figure["layout"]["title"]["text"]
        assert "cuDNN" not in words
        assert "100 operations per byte, 100 TFLOP/s, 50% of the roof" in gpu_figures.roofline(ceilings, run)[1]
        assert "5% at 512" in gpu_figures.decode(run, ceilings)[1]
