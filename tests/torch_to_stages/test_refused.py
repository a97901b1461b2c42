"""What cannot be compiled is refused with the user's line and a fix."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch_to_stages import refused

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError
from neptune_lab.torch_to_stages.transform_levels import levels_restored

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def refusal(function) -> DefinitionError:
    with pytest.raises(DefinitionError) as caught:
        nl.from_torch(function, torch.randn(4, 8))
    return caught.value


@pytest.mark.one_in(6)
@pytest.mark.parametrize("function", refused.FUNCTIONS, ids=lambda f: f.__name__)
def test_an_error_names_the_line_and_a_fix(function):
    error = refusal(function)
    lines, first = inspect.getsourcelines(function)
    marked = [n for n, line in enumerate(lines, first) if line.rstrip().endswith("# here")]
    for number in marked:
        assert f"{refused.__file__}, line {number}: `{lines[number - first].strip()}`" in error.reason
        assert error.node == f"{refused.__file__}:{number}"
    assert error.help


def speaks(x):
    print("a word", file=sys.stderr)
    return refused.branches(x)


def test_torch_prints_and_logs_nothing_of_its_own(capfd: pytest.CaptureFixture[str]):
    """Its exporter prints the graph of a function whose control flow depends on values, and logs a warning."""
    assert "values of a tensor" in refusal(speaks).reason
    assert capfd.readouterr() == ("", "a word\n")


def entropy_of(x):
    return torch.distributions.Categorical(logits=x, validate_args=True).entropy()  # (Dynamo turns the default off)


def by_numpy(x):
    return torch.from_numpy(x.numpy())


def to_classes(x):
    return torch.nn.functional.one_hot(x.long())


def into_bins(x):
    return torch.bincount(x[0].long())


@pytest.mark.parametrize(
    ("function", "fix"),
    [
        (entropy_of, "validate_args=False"),
        (by_numpy, "functions of torch"),
        (to_classes, "F.one_hot(x, n)"),
        (into_bins, "F.one_hot(x, n).sum(0)"),
    ],
)
def test_what_torch_does_beside_the_graph_has_a_fix(function, fix):
    assert fix in str(refusal(function).help)


def test_the_messages(golden):
    rows = [f"{f.__name__}\n{refusal(f)}".replace(refused.__file__, "FILE") for f in refused.FUNCTIONS]
    golden("from_torch_refusals.txt", "\n\n".join(rows) + "\n")


def flex(x):
    return flex_attention(x[None, None], x[None, None], x[None, None])


def attends(x):
    return nl.attention(x[None, None], x[None, None], x[None, None])


def gradient(x):
    return torch.autograd.grad(x.requires_grad_().exp().sum(), x)[0]


def gradient_of_a_function(x):
    return torch.func.grad(lambda y: y.logsumexp(0).sum())(x)


def forward_derivative(x):
    return torch.func.jvp(lambda y: y.softmax(-1), (x,), (x,))[1]


def backward_derivative(x):
    return torch.func.vjp(torch.sin, x)[1](x)[0]


def mapped_to_the_last_dimension(x):
    return torch.vmap(lambda row: row.softmax(0), in_dims=1, out_dims=1)(x)


def chosen_by_cond(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def tensor_of_an_element(x):
    return torch.tensor([1.0, x[0, 0]]) * 2


def loss_of_sequences(x):
    labels, lengths = torch.ones(8, 2, dtype=torch.long), torch.ones(8, dtype=torch.long)
    return torch.nn.functional.ctc_loss(x[:, None].expand(-1, 8, -1).log_softmax(-1), labels, 4 * lengths, lengths)


def generator(x):
    return x + torch.rand(8, generator=torch.Generator().manual_seed(1))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("function", "what", "help"),
    [
        (chosen_by_cond, "it calls torch.cond, scan or another operator", "torch.where"),
        (tensor_of_an_element, "it calls a function that reads the values of a tensor", "torch.stack"),
        (loss_of_sequences, "torch knows no shape of the result of aten._ctc_loss", "take it out"),
        (generator, "which is no tensor", "the numbers that it draws"),
        (flex, "it calls flex_attention", "nl.attention beside the function"),
        (attends, "a kernel of this package cannot be traced", "F.scaled_dot_product_attention"),
        (gradient, "it calls a derivative by autograd", "with_gradients"),
        (gradient_of_a_function, "a derivative of torch.func cannot be traced", "with_gradients"),
        (forward_derivative, "a derivative of torch.func cannot be traced", "with_gradients"),
        (backward_derivative, "a derivative of torch.func cannot be traced", "with_gradients"),
        (mapped_to_the_last_dimension, "torch.vmap with out_dims other than 0", "movedim"),
        (
            torch.jit.script(torch.nn.Linear(8, 8)),
            "torch cannot trace RecursiveScriptModule",
            "before torch.jit.script",
        ),
    ],
)
def test_what_cannot_be_traced_is_named(function: Callable[..., Any], what: str, help: str):
    with pytest.raises(DefinitionError, match=what) as caught:
        nl.from_torch(function, torch.randn(4, 8))
    assert help in caught.value.help


def sorted_in_a_map(x):
    return torch.vmap(lambda row: row.sort()[0])(x)


def derivative_in_a_map(x):
    return torch.vmap(lambda row: torch.func.jvp(lambda r: r.sort()[0], (row,), (row,))[1])(x)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "function", [forward_derivative, backward_derivative, derivative_in_a_map, gradient_of_a_function, sorted_in_a_map]
)
def test_a_refused_transform_leaves_no_level_behind(function: Callable[..., Any]):
    """Every tensor of the process would be wrapped from then on."""
    refusal(function)
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert torch.autograd.forward_ad._current_level == -1
    assert nl.from_torch(lambda x: x.exp(), torch.ones(3, 4)).outputs


def leaves_levels() -> None:
    torch._C._functorch._vmap_increment_nesting(3, "error")
    torch.autograd.forward_ad.enter_dual_level()
    raise ValueError("between two operations of torch.func")


def test_levels_that_an_error_leaves_are_ended():
    with pytest.raises(ValueError, match="between"), levels_restored():
        leaves_levels()
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert torch.autograd.forward_ad._current_level == -1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module():
    error = refusal(torch.jit.script(torch.nn.Linear(8, 8)))
    assert error.help == "give it as it was before torch.jit.script"


def test_a_kernel_inside_of_a_function():
    kernel = nl.compile(nl.from_torch(torch.exp, torch.randn(4, 8)))
    with pytest.raises(DefinitionError, match=r"it calls a kernel of this package, in .*test_refused.py"):
        nl.from_torch(lambda x: kernel(x) * 2, torch.randn(4, 8))


def test_arguments_that_are_no_example():
    with pytest.raises(DefinitionError, match="is given no tensor"):
        nl.from_torch(refused.sorts)
    with pytest.raises(DefinitionError, match="is given no tensor, but 3"):
        nl.from_torch(refused.sorts, 3)
    array = torch.ones(4, 8).numpy()
    with pytest.raises(
        DefinitionError, match=r"an ndarray of shape \(4, 8\) and dtype float32: expected a torch.Tensor"
    ):
        nl.from_torch(torch.add, torch.ones(4, 8), array)
    with pytest.raises(DefinitionError, match="expected a function"):
        nl.from_torch(3, torch.randn(2))  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"shape \(0, 2\)"):
        nl.from_torch(torch.exp, torch.randn(0, 2))
    with pytest.raises(DefinitionError, match="the input 'x' has dtype uint16; expected float16"):
        nl.from_torch(lambda x: x.float().sum(), torch.zeros(2, dtype=torch.uint16))
    held = torch.zeros(4, 6, dtype=torch.uint16)
    with pytest.raises(DefinitionError, match=r"outside of the function, of shape \(4, 6\) has dtype uint16") as raised:
        nl.from_torch(lambda x: (x * held.float()).sum(1), torch.zeros(4, 6))
    assert "mask.int()" in raised.value.help


def named(x, *, y):
    return x * y


def test_an_argument_that_is_given_by_name_alone():
    with pytest.raises(DefinitionError, match="missing 1 required keyword-only argument: 'y'") as raised:
        nl.from_torch(named, torch.ones(2, 3))
    assert "lambda x, y: f(x, y=y)" in raised.value.help


@dataclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor


@dataclass
class Known(Pair): ...


def test_dataclasses_of_tensors():
    """They are taken once torch knows them; until then, the error says how."""
    torch.export.register_dataclass(Known)
    x, y = torch.randn(2, 2, 3)
    kernel = nl.compile(nl.from_torch(lambda pair: Known(pair.a.softmax(-1), pair.a - pair.b), Known(x, y)))
    for ours, theirs in zip(kernel(x, y), (x.softmax(-1), x - y), strict=True):
        torch.testing.assert_close(ours, theirs)
    for function, example in ((lambda pair: pair.a, Pair(x, y)), (lambda x: Pair(x, x), x)):
        with pytest.raises(DefinitionError, match=r"an object of class '\S*Pair'") as raised:
            nl.from_torch(function, example)
        assert "torch.export.register_dataclass(" in raised.value.help


class Config:
    """An object that torch cannot look into."""

    def __init__(self, scale: Any) -> None:
        self.scale = scale


@pytest.mark.parametrize("result", [Config, lambda x: {x}, lambda x: (x, [Config(x)]), lambda x: (y for y in x)])
def test_a_result_that_torch_cannot_look_into(result: Callable[..., Any]):
    kind = r"test_refused\.Config|set|generator"
    with pytest.raises(DefinitionError, match=rf"returns an object of class '\S*({kind})'(.|\n)*return tensors, alone"):
        nl.from_torch(lambda x: result(x * 2), torch.ones(2, 3))


@pytest.mark.parametrize("scale", [2.0, torch.ones(3)])
def test_an_argument_that_torch_cannot_look_into(scale: Any):
    with pytest.raises(DefinitionError, match=r"argument of <lambda> is an object of class '\S*Config'(.|\n)*hold"):
        nl.from_torch(lambda x, config: x * config.scale, torch.ones(2, 3), Config(scale))


@pytest.mark.parametrize(
    ("dtype", "help"),
    [
        (torch.complex64, r"give x\.real, or compile the operator for torch\.view_as_real\(x\)"),
        (torch.float64, r"convert it with x\.to\(torch\.float32\)"),
    ],
)
def test_a_tensor_of_another_dtype(dtype: torch.dtype, help: str):
    kernel = nl.compile(nl.from_torch(lambda x: x.sum(-1), torch.ones(2, 3)), validate="none")
    with pytest.raises(LaunchError, match=rf"argument x has dtype {dtype}; expected torch.float32\n.*{help}"):
        kernel(torch.ones(2, 3, dtype=dtype, device=DEVICE))


def test_a_module_in_training_that_writes_statistics():
    with pytest.raises(DefinitionError, match="buffer"):
        nl.from_torch(torch.nn.BatchNorm1d(8), torch.randn(4, 8))
    nl.from_torch(torch.nn.BatchNorm1d(8).eval(), torch.randn(4, 8))
