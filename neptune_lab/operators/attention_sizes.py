"""The sizes of an attention operator, the shapes of its tensors and the types of its mods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from neptune_lab.errors import DefinitionError

ScoreMod: TypeAlias = Callable[[Any, Any, Any, Any, Any], Any]
MaskMod: TypeAlias = Callable[[Any, Any, Any, Any], Any]
# Where a cache of pages holds a key: from (b, kv) to its page, its place in the page, and whether there is such a key.
KeyPlace: TypeAlias = Callable[[Any, Any], tuple[Any, Any, Any]]
# The value of `out` for a query that sees no key: all its scores are -inf.
EmptyRows: TypeAlias = Literal["nan", "zero"]


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The sizes of an attention operator; heads // kv_heads query heads share a head of keys and values.

    Args:
        pages: for keys and values in a cache of pages, how many there are, and how many keys each holds.
        packed: the queries of all heads that share a head of keys are rows of one matrix in the definition.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    kv_batch: int
    pages: tuple[int, int] | None = None
    packed: bool = False

    @property
    def group(self) -> int:
        """Query heads per head of keys and values."""
        return self.heads // self.kv_heads

    def kv_head(self, head: Any) -> Any:
        """The head of keys and values that a query head reads; a number or an expression."""
        return head if self.group == 1 else head // self.group

    @property
    def rows(self) -> tuple[int, int, int]:
        """The samples, heads and rows of the scores: of each query head, or of each head of keys and values."""
        if not self.packed:
            return self.batch, self.heads, self.q_len
        return self.batch, self.kv_heads, self.q_len * self.group

    def kv_head_of_rows(self, head: Any) -> Any:
        """The head of keys and values that a head of the scores reads; a number or an expression."""
        return head if self.packed else self.kv_head(head)

    def query_of(self, head: Any, row: Any) -> tuple[Any, Any]:
        """The query head and the query of a row of the scores; numbers or expressions."""
        return (head * self.group + row % self.group, row // self.group) if self.packed else (head, row)

    def row_of(self, head: Any, query: Any) -> tuple[Any, Any]:
        """The head and the row of the scores of a query; numbers or expressions."""
        return (head // self.group, query * self.group + head % self.group) if self.packed else (head, query)

    def kv_sample(self, sample: Any) -> Any:
        """The sample of keys and values that a sample of queries reads; a number or an expression."""
        return sample if self.kv_batch == self.batch else 0

    @property
    def samples_and_heads(self) -> dict[str, tuple[int, int]]:
        """How many samples and heads of q, k and v may have scales of their own; a page belongs to no sample."""
        keys = (self.kv_batch if self.pages is None else 1, self.kv_heads)
        return {"q": (self.batch, self.heads), "k": keys, "v": keys}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of q, k, v, out, lse and max_scores."""
        b, h, n = self.batch, self.heads, self.q_len
        keys = (self.kv_batch, self.kv_heads, self.kv_len) if self.pages is None else (*self.pages, self.kv_heads)
        return {
            "q": (b, h, n, self.head_dim),
            "k": (*keys, self.head_dim),
            "v": (*keys, self.v_head_dim),
            "out": (b, h, n, self.v_head_dim),
            "lse": (b, h, n),
            "max_scores": (b, h, n),
        }


def sizes_of(params: Mapping[str, Any]) -> AttentionSizes:
    """`params` as `AttentionSizes`; by default kv_heads is heads, v_head_dim head_dim and kv_batch batch."""
    kv_heads, v_head_dim = params.get("kv_heads", params["heads"]), params.get("v_head_dim", params["head_dim"])
    kv_batch = params.get("kv_batch", params["batch"])
    if params["heads"] % kv_heads:
        raise DefinitionError(
            f"kv_heads={kv_heads}: expected a divisor of heads={params['heads']}",
            help="every head of keys and values serves the same number of query heads",
        )
    b, h, q_len, kv_len, d = (params[n] for n in ("batch", "heads", "q_len", "kv_len", "head_dim"))
    if kv_batch not in (1, b):
        raise DefinitionError(
            f"kv_batch={kv_batch}: expected 1 or batch={b}",
            help="every sample of queries has its own keys and values, or all samples share one",
        )
    pages = (params["pages"], params["page_size"]) if "pages" in params else None
    packed = params.get("pack_groups", False) and kv_heads < h
    return AttentionSizes(b, h, kv_heads, q_len, kv_len, d, v_head_dim, kv_batch, pages, packed)


__all__ = ["AttentionSizes", "EmptyRows", "KeyPlace", "MaskMod", "ScoreMod", "sizes_of"]
