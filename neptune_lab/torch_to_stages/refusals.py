"""Refusals of a traced function: what cannot be compiled, the user's line, and what would help."""

from __future__ import annotations

from traceback import walk_tb

from neptune_lab.errors import DefinitionError
from neptune_lab.torch_to_stages.lines import SourceLine

OF_DISTRIBUTION = "torch.distributions checks its arguments so; validate_args=False turns these checks off"
OF_ONE_HOT = "give the number of classes, F.one_hot(x, n): without it, torch reads the largest index"
OF_WRITE = "make a new tensor: y = table + 1 in place of table += 1 and of table.data = table + 1"
OF_STATE = "return the new value, and give it as an argument of the next call; for BatchNorm, call .eval()"
OF_GRAD = "return the gradient, and set .grad after the call; kernel.with_gradients() sets it"
OF_DATACLASS = "torch.export.register_dataclass(C), once, makes dataclasses C of tensors arguments and results"
_SORT = (
    "take the part that sorts out of the function, and pass its result as an input; "
    "x.topk(k) is taken, in n * n steps for n elements"
)
_QUANTILES = "give one number, x.quantile(0.5, dim), and stack the results of several"
_SHAPE = "keep the full shape, and mask with torch.where"
_RANDOM = "draw the numbers outside of the function, and pass them as an input"
OUTSIDE = "take it out of the function, and pass its result as an input"

# By the name of the ATen operation: what would help.
HELP: dict[str, str] = {
    **dict.fromkeys(("sort", "argsort", "mode", "msort"), _SORT),
    "quantile": _QUANTILES,
    "nanquantile": "x.nanmedian(dim) is taken, and x.quantile(0.5, dim) of rows without NaN",
    **dict.fromkeys(("nonzero", "masked_select", "unique", "_unique2", "unique_dim", "unique_consecutive"), _SHAPE),
    "bincount": "give the number of bins: F.one_hot(x, n).sum(0), or w @ F.one_hot(x, n).float() with weights w",
    **dict.fromkeys(
        (
            *("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli"),
            *("multinomial", "normal", "normal_functional", "uniform", "exponential"),
        ),
        _RANDOM,
    ),
    **dict.fromkeys(
        (
            *("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"),
            *("_fft_c2c", "_fft_r2c", "gru", "lstm", "histc"),
        ),
        OUTSIDE,
    ),
    **dict.fromkeys(
        ("masked_scatter", "put"),
        "write it as a gather: say for each element of the result which element it reads, such as x[index]",
    ),
    **dict.fromkeys(
        ("dropout", "native_dropout", "alpha_dropout", "feature_dropout"),
        "call .eval() on the module, or give p=0.0: a compiled function draws no random numbers",
    ),
    "item": "keep the value in a tensor: a shape or a Python number cannot depend on data",
    "_local_scalar_dense": "keep the value in a tensor: a shape or a Python number cannot depend on data",
}
# Operations of torch.linalg that are sums of products.
_PRODUCTS = frozenset(
    f"linalg_{name}"
    for name in (
        *("matmul", "multi_dot", "matrix_power", "vecdot", "cross"),
        *("diagonal", "norm", "matrix_norm", "vector_norm"),
    )
)
# By words of the refusal: what would help.
_FOR_ARGUMENTS = {
    "repeat_interleave": "give the size of its result, output_size=…, or repeats that no argument changes",
    "shape depends": _SHAPE,
    "quotient": "where the rounding of x / y does no harm, write torch.floor(x / y), or x - y * torch.floor(x / y)",
}
_OF_KERNEL = (
    "write out what it computes (attention as products and a softmax, or F.scaled_dot_product_attention), or leave it "
    'to torch.compile(backend="neptune_lab"), which calls kernels beside its own'
)
_OF_DERIVATIVE = "trace the function itself: nl.compile(op).with_gradients() has its derivatives"
# By a part of the paths in an error's traceback, or of its message: what the function does that cannot be traced, and
# what would help.
_UNTRACED = {
    "attention/flex_attention": (
        "calls flex_attention, which is traced by torch.compile only",
        "write products and a softmax, or call nl.attention beside the function: it takes the same mods",
    ),
    "torch/_functorch/eager_transforms": (
        "calls a derivative of torch.func",
        _OF_DERIVATIVE,
    ),
    "%_unwrap_for_grad": (
        "calls a derivative of torch.func",
        _OF_DERIVATIVE,
    ),
    "torch/autograd/__init__": (
        "calls a derivative by autograd",
        _OF_DERIVATIVE,
    ),
    "torch/_higher_order_ops/": (
        "calls torch.cond, scan or another operator that takes functions",
        "choose with torch.where, and write loops in Python",
    ),
    "a fake tensor in the exported program": (
        "calls what torch's exporter loses, such as torch.func.linearize, or torch.vmap with out_dims other than 0",
        "torch.vmap(f)(x).movedim(0, 1) in place of out_dims=1; nl.compile(op).with_gradients() for derivatives",
    ),
    "is mutated in the forward method": (
        "writes to a tensor that is no argument",
        OF_WRITE,
    ),
    "its data is not allocated yet": (
        "calls a function that reads the values of a tensor, such as torch.tensor([1.0, x[0]])",
        "torch.stack of tensors in place of torch.tensor, and of .new_tensor; x.clone() in place of torch.tensor(x)",
    ),
    "neptune_lab/runtime/": ("calls a kernel of this package", _OF_KERNEL),
    "triton/runtime/": ("calls a kernel of Triton", "write out what it computes, or pass its result in"),
}
# By a part of torch's or Python's message: what would help.
_FOR_MESSAGES = {
    ".numpy()": "use functions of torch in place of NumPy's, or pass what NumPy computes as an argument",
    "required keyword-only argument": "give it by name inside: nl.from_torch(lambda x, y: f(x, y=y), x, y)",
}
_USUAL = "docs/using/from_torch.md lists the operations; take this one out of the function, and pass its result in"


def help_for(name: str) -> str | None:
    """What would help with an operation that is refused by its name.

    Args:
        name: the operation, such as "sort".

    Returns:
        A fix; None if operations of this name are not refused as such.
    """
    plain = name.removesuffix("_")
    if plain.startswith(("linalg_", "_linalg_", "fft_")) and plain not in _PRODUCTS:
        return OUTSIDE
    return HELP.get(plain)


def help_for_message(message: str) -> str | None:
    """What would help with an error that torch or Python raised; None if that is not known."""
    return next((help for part, help in _FOR_MESSAGES.items() if part in message), None)


def refusal(what: str, line: SourceLine | None, help: str | None) -> DefinitionError:
    """The error for a function that cannot be compiled.

    Args:
        what: what was found and why it is refused.
        line: the user's line; None if it is not known.
        help: a fix.

    Returns:
        The error, to be raised.
    """
    where = "" if line is None else f", in {line}"
    return DefinitionError(f"{what}{where}", node=None if line is None else f"{line.path}:{line.line}", help=help)


def untraced(error: BaseException) -> tuple[str, str] | None:
    """What a function does that cannot be traced, by where torch's error comes from, and what would help.

    None if that is not known.
    """
    texts = [str(error), *_files(error)]
    return next((said for part, said in _UNTRACED.items() if any(part in text for text in texts)), None)


def raised_in(error: BaseException, part: str) -> bool:
    """Whether a file whose path has `part` is in an error's traceback."""
    return any(part in file for file in _files(error))


def _files(error: BaseException) -> list[str]:
    """The files of an error's traceback."""
    return [frame.f_code.co_filename.replace("\\", "/") for frame, _ in walk_tb(error.__traceback__)]


def refused_kernel(line: SourceLine | None) -> DefinitionError:
    """The error for a call of `nl.attention`, or of another kernel of this package."""
    return refusal("a kernel of this package cannot be traced", line, _OF_KERNEL)


def refused_derivative(line: SourceLine | None) -> DefinitionError:
    """The error for a derivative of torch.func (`jvp`, `vjp`, `grad`) that the exporter wrote into a graph."""
    return refusal("a derivative of torch.func cannot be traced", line, _OF_DERIVATIVE)


def refused_operation(name: str, line: SourceLine | None, why: str = "") -> DefinitionError:
    """The error for an ATen operation that is not taken, or not with these arguments.

    Args:
        name: the operation, such as "sort".
        line: the user's line.
        why: which arguments are not taken; "" if it is the operation itself.

    Returns:
        The error, to be raised.
    """
    plain = name.removesuffix("_")
    reason = f"torch's {plain} is not supported" + (f" {why}" if why else "")
    help = help_for(plain) or next((text for words, text in _FOR_ARGUMENTS.items() if words in reason), _USUAL)
    return refusal(reason, line, help)
