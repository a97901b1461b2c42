"""What a call of `attention` asks for besides its output, and the other names of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.pytorch.warned import warn_once
from neptune_lab.strict.console import class_of, shown
from neptune_lab.strict.values import check_switch


class Extras(NamedTuple):
    """What few calls ask for.

    Args:
        lse, max_scores: whether the kernel also returns the log-sum-exp, or the largest score, of each query.
        options: (name, value) of each of our options in `kernel_options`, by name.
        dynamic: whether one kernel takes all lengths (True), or each has its own (False); None: from the second length
            on.
        formats: of a call with tensors of 8 bits, from `quantized`; else empty.
    """

    lse: bool = False
    max_scores: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    dynamic: bool | None = None
    formats: tuple[tuple[str, Any], ...] = ()

    @property
    def deterministic(self) -> Any:
        """Whether gradients are added in one order: the option of that name, which is of the backward pass alone."""
        return dict(self.options).get("deterministic", True)

    @property
    def forward_options(self) -> dict[str, Any]:
        """The options of the forward kernel."""
        return {name: value for name, value in self.options if name != "deterministic"}

    @property
    def known(self) -> tuple[bool, bool | None, tuple[tuple[str, Any], ...], bool]:
        """The last arguments of `known_calls.launched`, which finds calls without formats."""
        return self.lse, self.dynamic, self.options, self.max_scores


PLAIN = Extras()

# Values of options that are equal only if they are the same, beside others of their type.
_PLAIN_VALUES = frozenset({bool, int, str, type(None)})
_MOST = 256
# By the items of `kernel_options` and the types of the values: our own options, as in `Extras.options`.
_known_options: dict[Any, tuple[tuple[str, Any], ...]] = {}


# Arguments of SDPA that `attention` does not take, and what to do instead.
_INSTEAD = {
    "attn_mask": "nl.scaled_dot_product_attention takes it; here, mask_mod=lambda b, h, q, kv: attn_mask[b, h, q, kv]",
    "dropout_p": "leave it out: there is no dropout",
    "is_causal": "nl.scaled_dot_product_attention takes it; here, mask_mod=lambda b, h, q, kv: q >= kv",
}
_NAMES = {"query": "q", "key": "k", "value": "v"}


def named(q: Any, k: Any, v: Any, others: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """q, k and v, some of which may have FlexAttention's names query, key and value.

    Raises:
        LaunchError: a tensor is given twice, or there is another argument; None and False count as left out.
    """
    given = {"q": q, "k": k, "v": v}
    for name, value in others.items():
        if name in _NAMES:
            if given[_NAMES[name]] is not None:
                raise LaunchError(
                    f"attention got {_NAMES[name]} and {name}, two names of one tensor", help="give one of them"
                )
            given[_NAMES[name]] = value
        elif name not in _INSTEAD:
            raise LaunchError(
                f"attention has no argument {name!r}",
                help="it takes q, k, v, score_mod, mask_mod, block_mask, scale, enable_gqa, return_lse, return_aux, "
                "kernel_options, cu_seqlens_q, cu_seqlens_k, dynamic, q_scale, k_scale, v_scale and weights_dtype",
            )
        elif value is not None and value is not False and not (name == "dropout_p" and value == 0):
            raise LaunchError(f"attention does not take {name}", help=_INSTEAD[name])
    return given["q"], given["k"], given["v"]


def extras_of(return_lse: Any, return_aux: Any, kernel_options: Any, dynamic: Any = None) -> Extras:
    """What a call asks for besides the output; FlexAttention's own options are left out, with a warning once.

    Raises:
        LaunchError: an argument is not of its type, or return_lse and return_aux are both given.
    """
    from torch.nn.attention.flex_attention import AuxRequest

    check_switch("return_lse", return_lse, LaunchError)
    if return_aux is not None and not isinstance(return_aux, AuxRequest):
        raise LaunchError(
            f"argument return_aux is {class_of(return_aux)}; expected an AuxRequest",
            help="return_aux=torch.nn.attention.flex_attention.AuxRequest(lse=True)",
        )
    if return_lse and return_aux is not None:
        raise LaunchError(
            "attention got return_lse and return_aux", help="return_aux=AuxRequest(lse=True) alone returns it"
        )
    lse, largest = return_aux if return_aux is not None else (return_lse, False)
    check_switch("return_aux.lse", lse, LaunchError)
    check_switch("return_aux.max_scores", largest, LaunchError)
    if dynamic is not None:
        check_switch("dynamic", dynamic, LaunchError)
    return Extras(lse, largest, as_ordered(_own_options(kernel_options)), dynamic)


def as_ordered(options: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """The options, of which torch.use_deterministic_algorithms(True) leaves out gradients that are added in any
    order."""
    if ("deterministic", False) in options and torch.are_deterministic_algorithms_enabled():
        return tuple([option for option in options if option[0] != "deterministic"])
    return options


def known_own_options(kernel_options: Any) -> tuple[tuple[str, Any], ...] | None:
    """Our options of a dict that was seen before; None of others."""
    key = _key_of(kernel_options)
    return None if key is None else _known_options.get(key)


def forget() -> None:
    """Forgets all options that were seen."""
    _known_options.clear()


def _key_of(kernel_options: Any) -> Any:
    """The items of a dict, and the types of the values; None of anything else, or if it cannot be a key."""
    if type(kernel_options) is not dict:
        return None
    types = tuple(map(type, kernel_options.values()))
    return (tuple(kernel_options.items()), types) if _PLAIN_VALUES.issuperset(types) else None


def _own_options(kernel_options: Any) -> tuple[tuple[str, Any], ...]:
    """Our options, sorted by name; the names and values are checked when a kernel is compiled."""
    from torch.nn.attention.flex_attention import FlexKernelOptions

    if not isinstance(kernel_options, Mapping | None):
        raise LaunchError(
            f"argument kernel_options is {class_of(kernel_options)}; expected a dict",
            help='kernel_options={"block_q": 64, "block_kv": 64}',
        )
    own, theirs = [], []
    for name, value in (kernel_options or {}).items():
        known = isinstance(name, str) and (name.isupper() or name.startswith(("fwd_", "bwd_")))
        if known or (name in FlexKernelOptions.__annotations__ and name not in ("num_warps", "num_stages")):
            theirs.append(name)
        else:
            own.append((name, _comparable_value(name, value)))
    if theirs:
        warn_once(
            "kernel_options",
            f"attention ignores {', '.join(theirs)} in kernel_options, which are options of FlexAttention's kernels; "
            "its own are the fields of nl.TileConfig, nl.SplitKConfig and nl.CodeOptions",
        )
    found, key = tuple(sorted(own)), _key_of(kernel_options)
    if key is not None:
        if len(_known_options) >= _MOST:
            _known_options.clear()
        _known_options[key] = found
    return found


def _comparable_value(name: Any, value: Any) -> Any:
    """The value of an option as a number, text, switch or None, or a tuple of them, which caches can compare."""
    entries = value if isinstance(value, list | tuple) else (value,)
    if not isinstance(name, str) or not all(isinstance(v, int | str | None) for v in entries):
        raise LaunchError(
            f"kernel_options has {shown(name)}: {shown(value)}; expected a name, and a number, a text or a switch",
            help='kernel_options={"block_q": 64, "block_kv": 64}',
        )
    return tuple(value) if isinstance(value, list) else value
