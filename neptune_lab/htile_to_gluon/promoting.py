"""A consumer whose products are added to their accumulators in float32, by statements of their own.

    before the loop   x = a @ b0
    each tile         wait for x, row work j, p = p of tile j;  z = p @ cj  |  x = a @ bj+1;  wait for z, y = f(y, z)

The leading product of the next tile is issued together with the trailing product of this one, and no product runs
during row work: x, y and z together take so many registers that the values of row work would spill.  Meanwhile, the
other consumer's products run.  `p` is not carried from one iteration to the next, since the compiler carries floats of
8 bits byte by byte.  If x, y and z together do not fit the registers (256 keys in a tile), the next leading product is
issued last, and then the other consumer may issue its products:

    each tile         wait for x, row work j, p = p of tile j;  z = p @ cj;  wait for z, y = f(y, z);  x = a @ bj+1

If the weights of a tile's first keys are float16 (more_digits.py), their product runs while those of the other keys are
computed, and the product of these is added to it.

After the last tile, the leading product runs on stale operands, unused: products under an `if` would be serialised.
"""

from __future__ import annotations

from neptune_lab.htile.nodes import Access, Arith, Elementwise, IndexExpr, Int, Literal, Reduce, Store, TileExpr
from neptune_lab.htile.rounded_weights import unrounded
from neptune_lab.htile.walk import reads
from neptune_lab.htile_to_gluon.barriers import full
from neptune_lab.htile_to_gluon.consumer import Consumer
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.expressions import emit, whole_tile
from neptune_lab.htile_to_gluon.partial_sums import factor, summed_after_loop
from neptune_lab.htile_to_gluon.registers import products_fit_together
from neptune_lab.htile_to_gluon.rows import ROWS, part
from neptune_lab.htile_to_gluon.shared_memory import RingBuffer, SharedMemory
from neptune_lab.htile_to_gluon.structure import LoopPart, Product, Structure
from neptune_lab.htile_to_gluon.tile_schedule import canonicalize, for_each_tile, tiles_of_parts
from neptune_lab.htile_to_triton.scope import Draft, Scope
from neptune_lab.wrapping import Doc, call, seq


class PromotingConsumer(Consumer):
    """The emission of one consumer function."""

    def __init__(self, ctx: GluonContext, shared: SharedMemory, *, staged: bool = True) -> None:
        super().__init__(ctx, shared, staged=staged)
        targets = {product.target for product in self.structure.first.leading}
        self.carried |= targets
        for name in sorted(targets):
            ctx.tiles[name] = ctx.names.fresh(name)
        self.together = products_fit_together(ctx.program, self.structure)
        self.sums = summed_after_loop(self.structure)
        self.totals = {total: ctx.tiles[total] for total in self.sums.values()}
        self.of_weights: dict[tuple[str, str], str] = {}
        self.started: set[str] = set()  # trailing products that run in float16
        self.of_parts: dict[Store, Product] = {}  # sums of weights that are apart

    def _tile(self) -> None:
        ctx, structure = self.ctx, self.structure
        for stmt in structure.before:
            self._store(stmt)
        unscaled = structure.unscaled
        if unscaled is None:
            self._loop(structure)
            return
        for header, form in (
            (f"if {ctx.tiles[unscaled.size]} <= {unscaled.limit!r}:", unscaled.small),
            ("else:", structure),
        ):
            scope = Scope(ctx.scope, frozenset())
            scope.header = Draft([header], ctx.kernel.name)
            scope.header.used_by(ctx.kernel.node_id)
            with ctx.inside(scope):
                self._loop(form)

    def _loop(self, structure: Structure) -> None:
        """The tiles of a program, and its outputs."""
        ctx = self.ctx
        ctx.tiles |= self.totals
        ctx.line("# the first product", comment=True)
        self._start_leading(structure.first)
        follows = True
        for n, this in enumerate(structure.parts):
            after = structure.parts[n + 1 :]

            def one(mine: IndexExpr, this: LoopPart = this, after: tuple[LoopPart, ...] = after) -> None:
                nonlocal follows
                follows = self._work(this, canonicalize(Arith("+", mine, tiles_of_parts(ctx, after))))

            for_each_tile(ctx, this, opened=False, body=one)
        if follows:
            self._wait_for_leading(structure.first, 0)
        if self.shared.persistent:
            for resident in self.shared.resident:
                ctx.line(f"mbarrier.arrive({resident.spent}.index({self._slot()}), count=1)")
        ctx.line("# the outputs", comment=True)
        for total, name in self.totals.items():
            ctx.tiles[total] = ctx.name_for(("total", total), f"{name}_of_row", ctx.scope)
            layout = ctx.rows_layout()
            ctx.line(f"{ctx.tiles[total]} = tl.convert_layout(tl.sum({name}, axis=1), {layout}, assert_trivial=True)")
        for stmt in structure.after:
            self._store(stmt)

    def _store(self, stmt: Store) -> None:
        """A statement; sums of weights and their total are kept for each thread, and added up at the end."""
        ctx, target = self.ctx, stmt.target.tensor
        if target not in self.sums and target not in self.totals:
            super()._store(stmt)
            return
        self._at(stmt)
        value = part(stmt.value, self.rows)
        if isinstance(value, Reduce) and stmt in self.of_parts:
            product = self.of_parts[stmt]
            others = f"{ctx.helper('_sums_of_threads')}({self._keys_of_left(product)[-1]})"
            layout = f"{ctx.tiles[self.sums[target]]}.type.layout"
            parts = (self._name(product, "sums"), others)
            first, last = (call("gl.convert_layout", text, layout, "assert_trivial=True") for text in parts)
            text: Doc = seq(first, " + ", last)
        elif isinstance(value, Reduce):
            columns = ctx.shape(value.arg)[1]
            tile = whole_tile(ctx, value.arg, (ROWS, columns), "float32")
            text = call(ctx.helper("_sums_of_threads"), tile)
        elif isinstance(value, Literal):
            columns = ctx.columns
            text = call(ctx.helper("_sums_of_threads"), self.zeros[columns])
        else:
            summed = next(name for name, total in self.sums.items() if total == target)
            by = factor(value, target, summed)
            assert by is not None
            vector = whole_tile(ctx, by, (ROWS,), "float32")
            beside = call(ctx.helper("_beside_threads"), vector, ctx.tiles[summed])
            text = call("gl.fma", beside, ctx.tiles[target], ctx.tiles[summed])
        ctx.line(seq(f"{ctx.tiles[target]} = ", text))
        ctx.defined[target] = (ROWS,)

    def _work(self, this: LoopPart, left: IndexExpr) -> bool:
        """A tile; `left` tiles follow it.  Returns whether the leading products after it are issued."""
        ctx = self.ctx
        follows = left != Int(0)
        unscaled = self.structure.unscaled
        self._finish_leading(this, 0)
        early = self._early(this)
        for stmt in this.middle:
            self._fresh_name(stmt.target.tensor)
            with ctx.fusing(on=unscaled is not None and stmt.target.tensor == unscaled.weight):
                if stmt is early:
                    self._start_halves(this.trailing[0], stmt)
                else:
                    self._store(stmt)
        for product in this.trailing:
            self._fresh_name(product.target)
            self._left(product)
        if follows and self.together:
            self._await_next(left)
        if early is None:
            self._wait_for_turn()
        self._issue_trailing(this, waited=True)
        if follows and self.together:
            self._issue_leading(this)
        if self.together or not follows:
            self._let_other_pass()
        self._finish_trailing(this, tie=False, running=self._issues(this) if follows and self.together else 0)
        for product in this.trailing:
            self._promote(product)
        for stmt in this.after:
            self._fresh_name(stmt.target.tensor)
            self._store(stmt)
        if follows and not self.together:
            self._await_next(left)
            self._issue_leading(this)
            self._let_other_pass()
        return follows

    def _early(self, this: LoopPart) -> Store | None:
        """The statement of the weights of a tile if their first keys can be multiplied before the others are computed:
        if nothing but that product and their sum reads them."""
        product = this.trailing[0]
        weights = unrounded(product.a)
        if len(this.trailing) > 1 or product.halves is None or not isinstance(weights, Access):
            return None
        stored = [stmt for stmt in this.middle if stmt.target.tensor == weights.tensor]
        readers = [s for s in (*this.middle, *this.after) if weights.tensor in {a.tensor for a in reads(s)}]
        value = stored[0].value if len(stored) == 1 else None
        if not isinstance(value, Elementwise) or value.op not in ("exp", "exp2"):
            return None
        if any(s.target.tensor not in self.sums or not isinstance(s.value, Reduce) for s in readers):
            return None
        self.of_parts |= dict.fromkeys(readers, product)
        return stored[0]

    def _wait_for_turn(self) -> None:
        """Waits until the trailing products may be issued."""
        self.barriers.wait([full(ring) for ring in dict.fromkeys(self.shared.trailing)])
        if self.ping_pong:
            self.barriers.take_turn()

    def _let_other_pass(self) -> None:
        """The other consumer may issue products: all of this one's are issued."""
        if self.ping_pong:
            self.barriers.pass_turn()

    def _start_leading(self, this: LoopPart, more: str = "") -> None:
        unscaled = self.structure.unscaled
        if unscaled is not None:
            ctx = self.ctx
            for resident in self.shared.resident:
                slot = self._slot()
                ctx.line(f"mbarrier.wait({resident.ready}.index({slot}), {self.shared.resident_parity}{more})")
                ctx.line(f"if {ctx.tiles[unscaled.scale]} < 0:")
                layout = ctx.tile_layout(resident.shape[1])
                ctx.line(f"    {ctx.helper('_negate')}({resident.tile(slot)}, {layout})")
        super()._start_leading(this, more)

    def _left(self, product: Product) -> None:
        """Converts a left operand to 8 bits: as it is, in halves of its keys, or with the rest that rounding leaves."""
        if self.structure.in_halves is None and not product.exact:
            super()._left(product)
            return
        ctx = self.ctx
        self._at(product.store)
        wide = ctx.shape(product.a)[1]
        if product.target not in self.left:
            self.left[product.target] = ctx.names.fresh(f"{product.target}_left")
        layout = ctx.operand_layout(ctx.shape(product.store.target)[1])
        if not product.exact:
            self._line_of_operand(self.left[product.target], product, self._keys(product.a, wide))
            return
        if product.halves is not None:
            if product.target not in self.started:
                self._left_in_halves(product, emit(ctx, part(unrounded(product.a), self.rows), wide).doc)
            others = self._name(product, "others")
            in_order = call(ctx.helper("_in_order_of_keys"), f"{others}.to(gl.float8e4nv)")
            self._line_of_operand(self.left[product.target], product, in_order)
            return
        first, second, rounded, rest = (self._name(product, what) for what in ("first", "second", "rounded", "rest"))
        keys = self._keys(unrounded(product.a), wide, layout)
        ctx.line(seq(f"{first}, {second} = ", call(ctx.helper("_split_keys"), keys)))
        ctx.line(f"{rounded}, {rest} = {ctx.helper('_rounded_and_rest')}({first})")
        of_first, of_rest, of_second = self._parts_of_left(product)
        self._line_of_operand(of_first, product, rounded)
        self._line_of_operand(of_rest, product, rest)
        self._line_of_operand(of_second, product, f"{ctx.helper('_rounded')}({second})")

    def _start_halves(self, product: Product, stmt: Store) -> None:
        """The weights of a tile: those of the first keys are multiplied while the others are computed."""
        ctx = self.ctx
        self._at(stmt)
        value = part(stmt.value, self.rows)
        assert isinstance(value, Elementwise)
        ring, wide = self.shared.trailing[0], ctx.shape(stmt.target)[1]
        self._left_in_halves(product, emit(ctx, value.args[0], wide).doc, f"tl.{value.op}")
        low, high, _ = self._keys_of_left(product)
        summed = ctx.helper("_sums_of_threads")
        ctx.line(f"{self._name(product, 'sums')} = {summed}({low}) + {summed}({high})")
        self._wait_for_turn()
        self._issue_halves(ring, product)
        self.started.add(product.target)
        others = self._keys_of_left(product)[-1]
        ctx.line(f"{others} = tl.{value.op}({others})")

    def _left_in_halves(self, product: Product, tile: Doc, function: str = "") -> None:
        """The left operands of a product in float16: every thread has their elements already.

        Args:
            tile: weights, or what weights are a function of.
            function: its name.
        """
        ctx = self.ctx
        low, high, others = self._keys_of_left(product)
        ctx.line(seq(f"{low}, {high}, {others} = ", call(ctx.helper("_first_keys"), tile)))
        _, layout = ctx.layouts_of_halves(ctx.shape(product.store.target)[1])
        for name, keys in zip(self._halves_of_left(product), (low, high), strict=True):
            if function:
                ctx.line(f"{keys} = {function}({keys})")
            halves = call("gl.convert_layout", f"{keys}.to(gl.float16)", layout, "assert_trivial=True")
            ctx.line(seq(f"{name} = ", halves))

    def _keys_of_left(self, product: Product) -> list[str]:
        """The variables of the weights of the first keys, 0 and 1 of every four, and 2 and 3; and of the others."""
        return [self._name(product, what) for what in ("low", "high", "others")]

    def _halves_of_left(self, product: Product) -> list[str]:
        """The variables of the left operands of float16."""
        return [self._name(product, what) for what in ("left_low", "left_high")]

    def _keys(self, tile: TileExpr, wide: int, layout: str | None = None) -> Doc:
        """A tile of weights with its keys in order; if keys are in halves, every thread has four adjacent ones, side by
        side in the layout of a left operand."""
        text = emit(self.ctx, part(tile, self.rows), wide).doc
        if self.structure.in_halves is None:
            return text
        text = call(self.ctx.helper("_in_order_of_keys"), text)
        return text if layout is None else call("gl.convert_layout", text, layout, "assert_trivial=True")

    def _line_of_operand(self, name: str, product: Product, tile: Doc) -> None:
        """`name` is the tile as a left operand; if keys are in halves, every thread has its elements already."""
        ctx = self.ctx
        layout = ctx.operand_layout(ctx.shape(product.store.target)[1])
        trivial = () if self.structure.in_halves is None else ("assert_trivial=True",)
        ctx.line(seq(f"{name} = ", call("gl.convert_layout", tile, layout, *trivial)))

    def _parts_of_left(self, product: Product) -> list[str]:
        """The variables of the left operands: of the first keys, of what rounding leaves of them, and of the others."""
        left = self.left[product.target]
        return [left, *(self._name(product, what) for what in ("left_rest", "left_second"))]

    def _name(self, product: Product, what: str) -> str:
        """The variable of a part of a product's weights."""
        if (product.target, what) not in self.of_weights:
            self.of_weights[product.target, what] = self.ctx.names.fresh(f"{product.target}_{what}")
        return self.of_weights[product.target, what]

    def _operands(self, ring: RingBuffer, product: Product) -> list[tuple[str, str]]:
        if not product.exact or product.halves is not None:
            return super()._operands(ring, product)
        of_first, of_rest, of_second = self._parts_of_left(product)
        first, second = (
            f"{ring.tile}.slice({start}, {product.exact}, dim=1).permute((1, 0))" for start in (0, product.exact)
        )
        return [(of_first, first), (of_rest, first), (of_second, second)]

    def _sum_before(self, ring: RingBuffer, product: Product) -> tuple[str, ...]:
        """What a trailing product is added to: the product of the first keys in float16, while it runs."""
        if product.halves is None or ring.halves is None:
            return super()._sum_before(ring, product)
        ctx, name = self.ctx, self._name(product, "of_halves")
        if product.target not in self.started:
            self._issue_halves(ring, product)
        self.started.discard(product.target)
        running = f"warpgroup_mma_wait({len(self._halves_of_left(product))}, [{name}])"
        layout = ctx.tile_layout(ctx.shape(product.store.target)[1])
        ctx.line(seq(f"{name} = ", call("gl.convert_layout", running, layout, "assert_trivial=True")))
        return (name,)

    def _issue_halves(self, ring: RingBuffer, product: Product) -> None:
        """Issues the product of the first keys in float16."""
        assert ring.halves is not None
        ctx, name = self.ctx, self._name(product, "of_halves")
        columns = ctx.shape(product.store.target)[1]
        layout, _ = ctx.layouts_of_halves(columns)
        to = (call("gl.convert_layout", self.zeros[columns], layout, "assert_trivial=True"), "use_acc=False")
        for number, left in enumerate(self._halves_of_left(product)):
            right = ring.halves.half(ring.slot, number)
            ctx.line(seq(f"{name} = ", call("warpgroup_mma", left, right, *to, "is_async=True")))
            to = (name,)

    def _fresh_name(self, tensor: str) -> None:
        ctx = self.ctx
        if tensor not in self.carried:
            ctx.tiles[tensor] = ctx.name_for(("tile", tensor), tensor, ctx.scope)

    def _promote(self, product: Product) -> None:
        """`y = f(y, z)`; a sum of a product and z is fused, which rounds once and is one instruction."""
        ctx = self.ctx
        store = product.promotion
        assert store is not None
        self._at(store)
        shape = (ROWS, ctx.shape(store.target)[1])
        name = ctx.tiles[product.accumulator]
        with ctx.fusing():
            ctx.line(seq(f"{name} = ", whole_tile(ctx, part(store.value, self.rows), shape, "float32")))


__all__ = ["PromotingConsumer"]
