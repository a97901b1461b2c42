"""Loading, launching, refusing arguments, exporting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from htile_programs import attention, softmax
from triton.runtime.errors import OutOfResources

from neptune_lab.errors import LaunchError
from neptune_lab.htile_to_triton import emit
from neptune_lab.runtime import KernelSpec, cache_directory, device_facts, load
from neptune_lab.tensor_spec import TensorSpec

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


@pytest.fixture
def kernel(build):
    return build(attention(32, 32, 16, 16, 16).program)


def tensors() -> list[torch.Tensor]:
    return [torch.ones(1, 2, 32, 16, dtype=torch.float16, device=DEVICE) for _ in "qkv"]


def test_launch_and_repr(kernel):
    out = kernel(*tensors())
    assert out.shape == (1, 2, 32, 16)
    assert torch.allclose(out, torch.ones_like(out))
    assert "attention(q: float16[1, 2, 32, 16], " in repr(kernel)


@pytest.mark.parametrize(
    ("position", "change", "match"),
    [
        (0, lambda x: x[:, :1], r"argument q has shape \(1, 1, 32, 16\); expected \(1, 2, 32, 16\)"),
        (1, lambda x: x.float(), r"k has dtype torch.float32; expected torch.float16\n.*k\.to\(torch\.float16\)"),
        (2, lambda x: x.mT.contiguous().mT, r"v has strides .*; expected a contiguous tensor\n.*v\.contiguous\(\)"),
        (0, lambda x: x.cpu().numpy(), r"argument q is an ndarray; expected a torch.Tensor"),
        (1, lambda x: x.to("meta"), r"argument k is on meta, where tensors have no values"),
    ],
)  # fmt: skip
def test_arguments_are_checked(kernel, position, change, match):
    arguments = tensors()
    arguments[position] = change(arguments[position])
    with pytest.raises(LaunchError, match=match):
        kernel(*arguments)


def test_the_number_of_arguments_is_checked(kernel):
    with pytest.raises(LaunchError, match=r"attention got 2 arguments; expected 3: q, k, v\n.*in this order"):
        kernel(*tensors()[:2])
    with pytest.raises(LaunchError, match="attention got 0 arguments; expected 3"):
        kernel()


def test_a_kernel_that_needs_more_than_the_gpu_has_is_explained(kernel, monkeypatch):
    """Triton finds out as it compiles for the GPU; its own message names no kernel of ours."""

    def too_large(*_: torch.Tensor) -> None:
        raise OutOfResources(262144, 232448, "shared memory")

    monkeypatch.setattr(kernel.module, kernel.spec.entry, too_large)
    match = "attention needs 262144 of shared memory; this GPU has 232448\n.*smaller tiles"
    with pytest.raises(LaunchError, match=match):
        kernel(*tensors())


@pytest.mark.parametrize("raised", [RuntimeError("PassManager::run failed"), RuntimeError("CUDA error: busy")])
def test_what_tritons_compiler_fails_on_is_ours(kernel, monkeypatch, raised: RuntimeError):
    """A pass of Triton's fails on some tiles of a few elements; errors of CUDA go through as they are."""

    def fails(*_: torch.Tensor) -> None:
        raise raised

    monkeypatch.setattr(kernel.module, kernel.spec.entry, fails)
    ours = "PassManager" in str(raised)
    with pytest.raises(
        LaunchError if ours else RuntimeError, match="Triton's compiler fails" if ours else "CUDA error"
    ):
        kernel(*tensors())


def test_gradients_are_refused_and_not_dropped(kernel):
    q, k, v = tensors()
    with pytest.raises(LaunchError, match=r"argument k records gradients, .* no backward\n.*torch\.no_grad.*k\.detach"):
        kernel(q, k.requires_grad_(), v)
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            assert not kernel(q, k, v).requires_grad
    assert not kernel(q, k.detach(), v).requires_grad
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(v, torch.ones_like(v))
        with pytest.raises(LaunchError, match="argument v carries a forward gradient"):
            kernel(q, k.detach(), dual)
        assert kernel(q, k.detach(), v).shape == (1, 2, 32, 16)


def test_negated_views_are_read_as_they_are_seen(kernel):
    """Such as the imaginary part of a conjugate: the memory holds the values with the other sign."""
    q, k, _ = (torch.randn(1, 2, 32, 16, device=DEVICE).half() for _ in "qkv")
    v = torch.randn(1, 2, 32, 16, dtype=torch.float16, device=DEVICE)
    negated = torch._neg_view(v)
    assert negated.is_neg()
    assert negated.is_contiguous()
    assert torch.equal(kernel(q, k, negated), kernel(q, k, -v))
    assert torch.equal(kernel.launch(q, k, negated), kernel(q, k, -v))


def test_sparse_tensors_are_refused(kernel):
    q, k, v = tensors()
    with pytest.raises(LaunchError, match=r"argument v has layout torch\.sparse_coo; expected torch\.strided"):
        kernel(q, k, v.to_sparse())


@pytest.mark.gpu
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreting")
def test_cpu_tensors_are_refused_where_kernels_run_on_the_gpu(kernel):
    with pytest.raises(LaunchError, match=r"argument q is on cpu; expected a CUDA device.*\n.*q\.cuda\(\)"):
        kernel(*(x.cpu() for x in tensors()))


def test_modules_are_written_to_the_cache_by_content(monkeypatch, tmp_path, build):
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path / "here"))
    assert cache_directory() == tmp_path / "here"
    first = build(softmax(3, 5).program)
    again = build(softmax(3, 5).program)
    assert first.module is again.module
    assert [path.suffix for path in (tmp_path / "here").iterdir()] == [".py"] or ON_GPU
    other = build(softmax(3, 6).program)
    assert other.module is not first.module
    assert Path(other.module.__file__ or "").parent == tmp_path / "here"


def test_an_unwritable_cache_is_no_obstacle(monkeypatch, tmp_path, build):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(blocked))
    x = torch.zeros(3, 7, device=DEVICE)
    assert torch.allclose(build(softmax(3, 7).program)(x), torch.full_like(x, 1 / 7))


def test_default_cache_is_outside_of_the_repository(monkeypatch):
    monkeypatch.delenv("NEPTUNE_LAB_CACHE")
    assert Path(__file__).parents[2] not in cache_directory().parents


def test_device_facts():
    facts = device_facts()
    assert facts.triton
    assert facts.interpreter != (facts.sm_count is not None)
    assert facts.name


SPEC = """
from neptune_lab.runtime import KernelSpec, load
text = "import triton, triton.language as tl\\n\\n\\n@triton.jit\\ndef k(x_ptr):\\n    tl.store(x_ptr, 1)\\n"
spec = KernelSpec("k", "k", text, (), ())
"""


@pytest.mark.nightly
@pytest.mark.skipif(ON_GPU, reason="is about machines without a GPU")
def test_the_runtime_asks_for_the_interpreter_by_itself():
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = SPEC + "print(load(spec).interpreter)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.nightly
@pytest.mark.skipif(ON_GPU, reason="is about machines without a GPU")
def test_a_triton_imported_too_early_is_explained():
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = "import triton.language" + SPEC + "load(spec)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert "Triton was imported without its interpreter, and there is no CUDA GPU here" in done.stderr
    assert "with TRITON_INTERPRET=1, set before triton is imported" in done.stderr


def test_results_of_several_outputs(build):
    source = emit(softmax(3, 5).program)
    spec = KernelSpec(
        "s", source.entry, source.text, (TensorSpec("x", (3, 5), "float32"),), (TensorSpec("out", (3, 5), "float32"),)
    )
    x = torch.tensor(np.eye(3, 5), dtype=torch.float32, device=DEVICE)
    assert torch.allclose(load(spec)(x), torch.softmax(x, 1))
