"""Functions that cannot be compiled, each with a mistake in its marked line."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def sorts(x):
    y = x * 2
    return torch.sort(y, -1).values  # here


def takes_two_quantiles(x):
    return x.quantile(torch.tensor([0.2, 0.8]), -1)  # here


def takes_the_most_frequent(x):
    best = x.mode().values  # here
    return best * 2


def selects_by_mask(x):
    return x[x > 0] * 2  # here


def finds_nonzero(x):
    return torch.nonzero(x)  # here


def branches(x):
    if x.sum() > 0:  # here
        return x
    return -x


def makes_a_number(x):
    scale = x.max().item()  # here
    return x / scale


def writes_to_its_input(x):
    x += 1  # here
    return x * 2


def drops_out(x):
    return F.dropout(x, 0.5, training=True)  # here


def draws(x):
    return x + torch.rand_like(x)  # here


def counts(x):
    return torch.histc(x, 4)  # here


def convolves(x):
    return F.conv1d(x[None], x[None])  # here


def inverts(x):
    return torch.linalg.inv(x @ x.mT)  # here


def scatters(x):
    return x.masked_scatter(x > 0, x * 2)  # here


def puts_a_value_per_true_element(x):
    y = x.clone()
    y[x > 0] = torch.arange(8.0)  # here
    return y


def views_strides_of_a_view(x):
    return x.T.as_strided((2, 2), (1, 2))  # here


def multiplies_different_dtypes(x):
    return x @ x.double().mT  # here


def takes_complex(x):
    return torch.view_as_complex(x.reshape(4, 4, 2)).sin().real  # here


def limits_int8_beyond_its_range(x):
    whole = x.to(torch.int8)
    return whole.clamp(max=200)  # here


def averages_int8_at_positions(x):
    whole = x.to(torch.int8)
    return whole.index_reduce(0, torch.tensor([0, 0]), whole[:2], "mean")  # here


def rounds_to_8_bits(x):
    return x.to(torch.float8_e5m2).float() * 2  # here


def leaves_a_remainder(x):
    return x % 0.1  # here


def rounds_a_quotient(x):
    return torch.div(x, x.abs() + 1, rounding_mode="trunc")  # here


def shapes_do_not_fit(x):
    return x @ x  # here


def returns_a_text(x):
    return x * 2, "sum"


FUNCTIONS = (
    sorts, takes_two_quantiles, takes_the_most_frequent, selects_by_mask, finds_nonzero, branches, makes_a_number,
    writes_to_its_input, drops_out,
    draws, counts, convolves, inverts, scatters, puts_a_value_per_true_element,
    views_strides_of_a_view, multiplies_different_dtypes, takes_complex, averages_int8_at_positions,
    limits_int8_beyond_its_range, rounds_to_8_bits,
    leaves_a_remainder, rounds_a_quotient, shapes_do_not_fit, returns_a_text,
)  # fmt: skip
