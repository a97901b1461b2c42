"""What a mod sees when it asks what its values are: tensors, of the dtypes that they have in PyTorch."""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Iterable
from numbers import Number

import numpy as np
import pytest
import torch
from attention_reference import DEVICE, flex, tensors
from torch import Tensor, is_tensor

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.operators.calling import call_mod
from neptune_lab.operators.capture import capture

SLOPES = torch.tensor([0.5, 0.25], device=DEVICE)
KINDS = (int, Tensor)
LEGACY = (int, torch.FloatTensor)


def by_match(x):
    match x:
        case int() | float():
            return False
        case torch.Tensor(ndim=0 | 1):
            return True
        case _:
            return False


@functools.singledispatch
def by_dispatch(x):
    return False


@by_dispatch.register
def _(x: torch.Tensor):
    return True


class Asks:
    kinds = Tensor

    def __init__(self):
        self.ask = isinstance

    def by_method(self, x):
        return isinstance(x, self.kinds)

    def by_attribute(self, x):
        return self.ask(
            x,
            self.kinds,
        )


def by_alias(x):
    ask = isinstance
    return ask(x, KINDS)


RIGHT = {
    "isinstance": lambda x: isinstance(x, torch.Tensor),
    "a name": lambda x: isinstance(x, Tensor),
    "a tuple": lambda x: isinstance(x, KINDS) and not isinstance(x, int | float),
    "a union": lambda x: isinstance(x, int | Tensor),
    "arguments": lambda x: isinstance(*(x, Tensor)),
    "builtins": lambda x: builtins.isinstance(x, Tensor),
    "abstract": lambda x: isinstance(x, Iterable) and not isinstance(x, Number | str),
    "torch.is_tensor": lambda x: torch.is_tensor(x),
    "is_tensor": is_tensor,
    "__class__": lambda x: x.__class__ is torch.Tensor and x.__class__.__name__ == "Tensor",
    "match": by_match,
    "singledispatch": by_dispatch,
    "a method": Asks().by_method,
    "an attribute": Asks().by_attribute,
    "a partial": functools.partial(Asks.by_method, Asks()),
    "an alias": by_alias,
    "inside": lambda x: all(isinstance(one, Tensor) for one in [x]),
    "an element": lambda x: isinstance(x if x.ndim == 0 else x[0], Tensor),
    "hasattr": lambda x: hasattr(x, "device") and not hasattr(x, "numerator"),
    "floating": lambda x: torch.is_floating_point((x if x.ndim == 0 else x[0]) + 0.5),
    "tensor-like": torch.overrides.is_tensor_like,
    "attrgetter": lambda x: CLASS_OF(x) is Tensor,
    "a partial of isinstance": lambda x: ASK(x, Tensor),
}
CLASS_OF, ASK = operator.attrgetter("__class__"), functools.partial(isinstance)


def traced(score_mod, **captured):
    """What a score_mod gives for a score of 0.1 at three positions."""
    bound = capture({"score_mod": score_mod}, (), live=True).bind("score_mod", captured)
    return call_mod("score_mod", bound, np.full(3, 0.1), *(np.zeros(3, np.int64),) * 4)


@pytest.mark.parametrize("name", RIGHT)
def test_every_value_of_a_mod_is_a_tensor(name):
    test, found = RIGHT[name], []

    def mod(score, b, h, q, kv):
        found.extend([test(score), test(h), test(SLOPES), test(SLOPES[h])])
        return score

    traced(mod, SLOPES=np.array([0.5, 0.25]))
    assert found == [True] * 4


def test_the_branch_of_tensors_is_compiled():
    def mod(score, b, h, q, kv):
        return score + SLOPES[h] * kv if isinstance(SLOPES, torch.Tensor) and by_match(h) else score * 0

    q, k, v = tensors((1, 2, 16, 16))
    assert (nl.attention(q, k, v, score_mod=mod) - flex(q, k, v, mod)).abs().max() < 2e-5


def kind_of(x):
    return type(x)


class OfType:
    def __init__(self):
        assert type(self) is not Tensor

    @property
    def asked(self):
        return lambda s, *index: s if type(s) is Tensor else s * 2

    def by_property(self, s, *index):
        return self.asked(s, *index)

    def asks_nothing(self, s, b, h, q, kv):
        return s * 2

    def __call__(self, score, b, h, q, kv):
        return score if type(score) is Tensor else score * 2


def test_another_name_of_type_is_refused():
    kind = type
    with pytest.raises(DefinitionError, match=r"type\(...\) of a value .*by another name"):
        traced(lambda s, b, h, q, kv: s if kind(s) is Tensor else s * 2)


BY_TYPE = {torch.Tensor: 1.0}
REFUSED = {
    "type is": lambda s, b, h, q, kv: s if type(s) is torch.Tensor else s * 2,
    "type ==": lambda s, b, h, q, kv: s if type(h) == Tensor else s * 2,  # noqa: E721
    "type in": lambda s, b, h, q, kv: s if type(h) in KINDS else s * 2,
    "issubclass": lambda s, b, h, q, kv: s if issubclass(type(h), Tensor) else s * 2,
    "a helper": lambda s, b, h, q, kv: s if kind_of(s) is Tensor else s * 2,
    "a table": lambda s, b, h, q, kv: s * BY_TYPE.get(type(s), 2.0),
    "its name": lambda s, b, h, q, kv: s if type(s).__name__ == "Tensor" else s * 2,
    "a partial": functools.partial(lambda s, b, h, q, kv, kind: s if type(s) is kind else s * 2, kind=Tensor),
    "an object": OfType(),
    "a property": OfType().by_property,
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_of_values_are_refused(name):
    with pytest.raises(DefinitionError, match=r"type\(...\) of a value .* line \d+: (.|\n)*isinstance"):
        traced(REFUSED[name])


OTHER_WAYS = {
    "builtins.type": (lambda s, b, h, q, kv: s if builtins.type(s) is Tensor else s * 2, r"type\(...\) of a value"),
    "map": (lambda s, b, h, q, kv: s if all(map(isinstance, (s,), (Tensor,))) else s * 2, "another function calls it"),
    "a partial": (lambda s, b, h, q, kv: s if functools.partial(isinstance, s)(Tensor) else s * 2, "another function"),
    "getattr": (lambda s, b, h, q, kv: s if getattr(s, "__class__") is Tensor else s * 2, "in a text"),  # noqa: B009
    "attrgetter": (lambda s, b, h, q, kv: s if operator.attrgetter("__class__")(s) is Tensor else s * 2, "in a text"),
}


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_classes_that_are_asked_for_in_other_ways_are_refused(name):
    mod, message = OTHER_WAYS[name]
    with pytest.raises(DefinitionError, match=message):
        traced(mod)


def test_types_of_other_values_are_read():
    width = 3
    traced(lambda s, b, h, q, kv: s * 2 if type(width) is int else s)


def test_a_method_beside_others_that_read_types():
    traced(OfType().asks_nothing)


@pytest.mark.parametrize(
    ("score_mod", "message"),
    [
        (lambda s, b, h, q, kv: s if isinstance(s, LEGACY) else s * 2, "torch.FloatTensor"),
        (lambda s, b, h, q, kv: s if isinstance(s, torch.LongTensor) else s * 2, "torch.FloatTensor"),
        (lambda s, b, h, q, kv: s if isinstance(SLOPES, torch.nn.Parameter) else s * 2, "torch.nn.Parameter"),
        (lambda s, b, h, q, kv: s * 2 if s.is_cuda else s, "attribute is_cuda"),
        (lambda s, b, h, q, kv: s * 2 if SLOPES.requires_grad else s, "attribute requires_grad"),
        (lambda s, b, h, q, kv: s * s.width, "attribute width, which torch's tensors do not have"),
    ],
)
def test_what_no_value_of_a_mod_tells_is_refused(score_mod, message):
    with pytest.raises(DefinitionError, match=message):
        traced(score_mod, SLOPES=np.array([0.5, 0.25]))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16])
def test_dtypes_of_captured_tensors(dtype):
    table = torch.tensor([1, 3], dtype=dtype, device=DEVICE)
    found = []

    def mod(score, b, h, q, kv):
        found.extend([table.dtype, table[h].dtype, table.clone()[h].dtype, score.to(table.dtype).dtype])
        zero = torch.zeros((), dtype=table.dtype)
        return score + (score * 100).to(table.dtype).float() + h.type_as(table) + zero + table[h]

    assert mod(torch.tensor(0.1), *(torch.tensor(0, device=DEVICE),) * 4) is not None
    assert found[:3] == [dtype] * 3
    found.clear()
    q, k, v = tensors((1, 2, 16, 16))
    assert (nl.attention(q, k, v, score_mod=mod) - flex(q, k, v, mod)).abs().max() < 1e-3
    assert set(found) == {dtype}


@pytest.mark.nightly
def test_dtypes_of_what_is_computed():
    half, table = (torch.tensor([1.0, 3.0], dtype=dtype, device=DEVICE) for dtype in (torch.float16, torch.bfloat16))
    found = []

    def mod(score, b, h, q, kv):
        one = half[h] * 2 + q
        found.extend(x.dtype for x in (one, (half * 2)[h].exp(), torch.where(q > kv, -one, 0.0), score.half(), 1 / one))
        found.extend(x.dtype for x in (one + score, half[h] * table[h], one.float() * 2, (q - kv) / 2))
        found.append((table[h].to(torch.bfloat16) + table.sum()).dtype)
        return score + one

    mod(torch.tensor(0.1), *(torch.tensor(0),) * 4)
    expected, found = found, []
    nl.attention(*tensors((1, 2, 16, 16)), score_mod=mod)
    assert found[: len(expected)] == expected
