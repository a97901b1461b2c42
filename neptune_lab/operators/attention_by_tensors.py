"""Attention whose mask is that of tensors which the operator gets: documents of a sequence, and pages of a cache."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.attention_arguments import checked_sizes, lengths_of, made_operator
from neptune_lab.operators.attention_options import AttentionOptions, with_options
from neptune_lab.operators.base import Operator, positive
from neptune_lab.operators.dims import takes_dims
from neptune_lab.operators.paging import paged_mods
from neptune_lab.strict.values import check_switch


@takes_dims
@with_options
def document(
    doc: Any, heads: int = 1, head_dim: int = 64, causal: bool = True, **options: Unpack[AttentionOptions]
) -> Operator:
    """Attention within documents: one sequence holds several, and a query sees only keys of its own document.

    Args:
        doc: the document of each position, integers (batch, seq), as an array or a torch tensor; it becomes the
            fourth input, and determines batch, q_len and kv_len.
        causal: a query sees only the keys up to its own position.
    """
    shape = tuple(int(n) for n in np.shape(doc))
    if len(shape) != 2:
        raise DefinitionError(
            f"doc has shape {shape}: expected (batch, seq)",
            help="give one document number per position: an integer array of shape (batch, seq)",
        )
    if options.get("q_len") is not None or options.get("kv_len") is not None:
        raise DefinitionError(
            "document takes its lengths from doc: q_len and kv_len go with the other operators",
            help="leave q_len and kv_len out, or use attention.general with a mask_mod",
        )
    params = lengths_of(shape[0], heads, shape[1], head_dim, options)

    def document_mask(b, h, q, kv):
        same = doc[b, q] == doc[b, kv]
        return same & (kv <= q) if causal else same

    own = {"causal": causal, "mask_mod": "document_mask"}
    return made_operator("attention_document", "Attention within documents", params, own, options, None, document_mask)


@takes_dims
@with_options
def paged(
    page_table: Any,
    lengths: Any,
    heads: int = 1,
    head_dim: int = 64,
    page_size: int = 16,
    pages: int | None = None,
    causal: bool = True,
    **options: Unpack[AttentionOptions],
) -> Operator:
    """Attention over keys and values in a cache of pages, as in vLLM and flash-attention.

        key[b, h, j, d] = k[page_table[b, j // page_size], j % page_size, h // group, d]   for j < lengths[b]

    `k` and `v` are the caches, (pages, page_size, kv_heads, ...).  The queries of a sequence are its last ones.

    Args:
        page_table: the pages of each sequence in order, integers (batch, most pages of a sequence), as an array or a
            torch tensor; it becomes an input.  What is behind the length of a sequence is not read.
        lengths: the number of keys of each sequence, integers (batch,); it becomes an input.
        page_size: keys of a page.
        pages: pages of the cache; None: one more than the largest number in page_table.
        causal: a query sees only the keys up to its own position.
        q_len: number of queries of each sequence; 1 if None.
    """
    table, own = np.shape(page_table), np.shape(lengths)
    if len(table) != 2 or tuple(own) != (table[0],):
        raise DefinitionError(
            f"page_table has shape {tuple(table)} and lengths {tuple(own)}: expected (batch, pages) and (batch,)",
            help="give one row of pages and one length per sequence",
        )
    if options.get("kv_len") is not None:
        raise DefinitionError(
            "paged takes the number of keys from page_table: kv_len goes with the other operators",
            help="leave kv_len out",
        )
    positive(page_size=page_size)
    check_switch("causal", causal, DefinitionError)
    count = int(np.asarray(page_table).max()) + 1 if pages is None else pages
    q_len = options.get("q_len") or 1
    options = AttentionOptions(**{**options, "q_len": q_len, "kv_len": int(table[1]) * page_size})
    params = lengths_of(int(table[0]), heads, None, head_dim, options)
    params |= checked_sizes({"pages": count, "page_size": page_size})
    mask = (lambda b, h, q, kv: q >= kv) if causal and q_len > 1 else None  # a single query is behind all keys
    _, paged_mask, key_place = paged_mods(None, mask, page_table, lengths, page_size, q_len)
    title = "Attention over a cache of pages"
    return made_operator(
        "attention_paged", title, params, {"causal": causal}, options, None, paged_mask, place=key_place
    )


__all__ = ["document", "paged"]
