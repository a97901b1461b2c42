# Written from the primitives' declarations: pytest tests/loop_schedule/test_methods.py --update-golden

from collections.abc import Iterable

class PrimitiveMethods:
    def split(
        self,
        loop: str,
        factors: Iterable[int | None],
        names: Iterable[str] | None = None,
    ) -> tuple[str, ...]:
        """Splits a loop into nested loops: `for j` becomes `for j0: for j1: …`.

        before ⇒ after, with factors (None, 64):
            for j in range(256):              for j0, j1 in grid(4, 64):
                X[j] = e(j)             ⇒         X[j0 * 64 + j1] = e(j0 * 64 + j1)

        If the factors cover more than the loop's extent, the blocks inside get a guard.

        Args:
            loop: the loop to split, as "block.loop".
            factors: extents of the two or more new loops, outermost first; at most one is None, which is computed.
            names: names of the new loops, one per factor; default: j0, j1, … for loop j.

        Returns:
            The new loops, outermost first, as "block.loop".

        Raises:
            ScheduleError: the factors do not cover the loop, a name is taken, or the loop is bound or annotated.
        """

    def reorder(
        self,
        block: str,
        *loops: str,
    ) -> tuple[str, ...]:
        """Puts loops around `block` in the given order, outermost first; other loops keep their places.

        before ⇒ after, with loops ("j", "i"):
            for i, j: X[i, j] = e    ⇒    for j, i: X[i, j] = e

        Args:
            block: a block inside the loops.
            loops: two or more of the loops around it, in the new order, named without the block.

        Returns:
            The loops in their new order, as "block.loop".

        Raises:
            ScheduleError: there is another block between the loops, a loop is named twice, or a scan would visit its tags
                in another order.
        """

    def fuse(
        self,
        block: str,
        *loops: str,
        name: str | None = None,
    ) -> str:
        """Fuses nested loops into one.

        before ⇒ after, for i of 4 and j of 8:
            for i, j in grid(4, 8): X[i, j] = e    ⇒    for ij in range(32): X[ij // 8, ij % 8] = e

        Args:
            block: a block inside the loops.
            loops: two or more loops, each directly inside the one before, outermost first, named without the block.
            name: the name of the new loop; default: their names joined.

        Returns:
            The new loop, as "block.loop".

        Raises:
            ScheduleError: a loop is not directly inside the one before, the name is taken, or a loop is bound or
                annotated.
        """

    def tile(
        self,
        block: str,
        /,
        **tiles: int,
    ) -> tuple[str, ...]:
        """Splits each loop by its tile size, and moves all outer loops before all inner ones: i, j ⇒ i0, j0, i1, j1.

        before ⇒ after, with i=16, j=16:
            for i, j in grid(64, 64): X[i, j] = e    ⇒    for i0, j0, i1, j1 in grid(4, 4, 16, 16): X[…] = e

        Args:
            block: a block inside the loops.
            tiles: the size of a tile along each loop, in iterations: `sch.tile("qk", i=128, j=64)`. A size need not divide
                the loop's extent; the block then gets a guard.

        Returns:
            The outer loops, then the inner ones, as "block.loop".

        Raises:
            ScheduleError: there is no such loop, a loop is bound or annotated, or the loops cannot be reordered.
        """

    def bind(
        self,
        loop: str,
        thread: str,
    ) -> None:
        """Binds a loop to a grid axis: its iterations become program instances, which run in parallel.

        before ⇒ after:
            for i in range(4): X[i] = e    ⇒    for i in range(4):  # blockIdx.x
                                                    X[i] = e

        Args:
            loop: the loop to bind, as "block.loop".
            thread: the grid axis: "blockIdx.x", "blockIdx.y" or "blockIdx.z".

        Raises:
            ScheduleError: a block carries a value from one iteration of the loop to the next, or a loop around or inside
                it is bound to that axis already.
        """

    def compute_at(
        self,
        block: str,
        loop: str,
    ) -> None:
        """Moves a producer under a loop of its consumers; each iteration computes only the elements that it reads.

        before ⇒ after:
            for i, j: A[i, j] = a                for i:
            for i, j: B[i, j] = b(A[i, j])  ⇒        for j: A[i, j] = a
                                                     for j: B[i, j] = b(A[i, j])

        Args:
            block: the producer.
            loop: a loop around every block that reads it, as "block.loop".

        Raises:
            ScheduleError: a reader is outside the loop, or would read an element before it is written.
        """

    def reverse_compute_at(
        self,
        block: str,
        loop: str,
    ) -> None:
        """Moves a consumer under a loop of its producers; each iteration uses the elements that it has just computed.

        before ⇒ after:
            for i, j: A[i, j] = a                for i, j:
            for i, j: B[i, j] = b(A[i, j])  ⇒        A[i, j] = a
                                                     B[i, j] = b(A[i, j])

        Everything that the consumer reads must be complete in each iteration, so a reduction along the loop is refused.

        Args:
            block: the consumer.
            loop: a loop around every block that computes what the consumer reads, as "block.loop".

        Raises:
            ScheduleError: a block that computes what the consumer reads is outside the loop, or is a reduction along it.
        """

    def inline(
        self,
        block: str,
    ) -> None:
        """Removes an elementwise block; its consumers compute its expression themselves.

        before ⇒ after:
            for i, j: E[i, j] = exp(A[i, j])     for i, j: S[i] += exp(A[i, j])
            for i, j: S[i] += E[i, j]        ⇒

        Args:
            block: the elementwise block.

        Raises:
            ScheduleError: the block is a reduction, writes an output, carries a value from one iteration to the next, or
                does not store at its own iteration variables.
        """

    def cache_read(
        self,
        block: str,
        buffer: str,
        scope: str = "shared",
    ) -> str:
        """Copies `buffer` to memory `scope` in a new block; `block` and all other readers of the buffer read the copy.

        before ⇒ after, with scope "shared":
            for i, j: B[i] += A[i, j]    ⇒    for i, j: A_shared[i, j] = A[i, j]
                                              for i, j: B[i] += A_shared[i, j]

        Args:
            block: a block that reads the buffer.
            buffer: the buffer to copy, by name.
            scope: the memory of the copy, "local", "shared" or "global".

        Returns:
            The block that makes the copy.

        Raises:
            ScheduleError: the block does not read the buffer, the buffer keeps one value per tag, or it has a copy in this
                scope already.
        """

    def cache_write(
        self,
        block: str,
        scope: str = "local",
    ) -> str:
        """Makes `block` write to a copy of its buffer in memory `scope`, which a new block stores to the buffer.

        before ⇒ after, with scope "local":
            for i, j: B[i] += A[i, j]    ⇒    for i, j: B_local[i] += A[i, j]
                                              for i: B[i] = B_local[i]

        Args:
            block: the block that writes.
            scope: the memory of the copy, "local", "shared" or "global".

        Returns:
            The block that stores the copy.

        Raises:
            ScheduleError: the buffer keeps one value per tag, or it has a copy in this scope already.
        """

    def set_scope(
        self,
        block: str,
        scope: str = "shared",
    ) -> None:
        """Sets the memory of the buffer that `block` writes; "shared" and "local" are on chip.

        Triton places on-chip tiles itself, so "shared" and "local" have the same effect in Triton. A buffer in global
        memory is stored only if another kernel or the caller reads it.

        Args:
            block: the block that writes the buffer.
            scope: the memory: "local", "shared" or "global".

        Raises:
            ScheduleError: the buffer is an output, and the scope is not "global".
        """

    def decompose_reduction(
        self,
        block: str,
        loop: str,
    ) -> str:
        """Writes the start value of a reduction in a separate block, before `loop`.

        before ⇒ after, at loop j:
            for i, j: X[i] = X[i] (f) e    ⇒    for i:
                                                    X[i] = initial
                                                    for j: X[i] = X[i] (f) e

        Args:
            block: a reduction that still writes its start value itself.
            loop: the outermost loop that the block folds along, or a loop outside that one, as "block.loop" with this
                block.

        Returns:
            The block that writes the start value.

        Raises:
            ScheduleError: `loop` names another block, the block has no start value, or it folds along a loop outside
                `loop`.
        """

    def annotate(
        self,
        loop: str,
        key: str,
        value: str | int = 1,
    ) -> None:
        """Sets an annotation of a loop; no value changes.

        "num_warps" and "num_stages" are launch hints, for the outermost loop of a nest or a loop that is bound to the
        grid. On another loop they raise TileError when the program is translated to tiles. "sequential" keeps the loop
        from becoming a dimension of a tile. "note" is text for readers.

        Args:
            loop: the loop, as "block.loop".
            key: "num_warps", "num_stages", "sequential" or "note"; an earlier annotation with this key is replaced.
            value: for "num_warps" a power of two from 1 to 32; for "num_stages" 1 to 16; for "sequential" 1; for "note" a
                string or an int.

        Raises:
            ScheduleError: the value is not allowed for this key.
        """

    def cut(
        self,
        block: str,
    ) -> None:
        """Divides the program before `block` into two parts, which are scheduled separately and share no kernel.

        before ⇒ after:
            for i, j: m[i] max= x[i, j]             for i, j: m[i] max= x[i, j]
            for i, j: s[i] += x[i, j] / m[i]   ⇒    ----- s -----
                                                    for i, j: s[i] += x[i, j] / m[i]

        Args:
            block: the first block after the cut; its nest contains no block of an earlier stage.

        Raises:
            ScheduleError: no block comes before it, or it shares a nest with an earlier block.
        """

    def distribute(
        self,
        block: str,
    ) -> tuple[str, ...]:
        """Makes two products of one whose factor is a sum or a difference.

        before ⇒ after:
            for i, j: p[i, j] = a[i, j] - b[i, j]          for i, c, j: l[i, c] += a[i, j] * v[j, c]
            for i, c, j: o[i, c] += p[i, j] * v[j, c]  ⇒   for i, c, j: r[i, c] += b[i, j] * v[j, c]
                                                           for i, c: o[i, c] = l[i, c] - r[i, c]

        Each product can then be fused with what computes its factor.  A factor that is rounded to 16 bits becomes two that
        are.

        Args:
            block: a stage that sums up products.

        Returns:
            The two products.

        Raises:
            ScheduleError: the stage is no sum of products, no factor is a sum, or the two products may overflow, or lose
                digits, where the definition does not.
        """

    def fuse_under(
        self,
        block: str,
        loop: str,
    ) -> None:
        """Moves a block to the end of a loop's body, aligned along the dimensions it shares with the blocks there.

        A block before the loop that contains all its readers moves to the start of the body.  Unlike
        reverse_compute_at, what it reads may also be written before that nest; unlike rolling_update, it breaks no
        dependence: a reduction that the loop leaves incomplete may not be read.

        before ⇒ after:
            for i: for t: A[i] += a(i, t)          for i: for t: A[i] += a(i, t)
            for i: for t: B[i] += A[i] * b(i, t) ⇒        for t: B[i] += A[i] * b(i, t)

        Args:
            block: the block that moves.
            loop: "block.loop", of another nest.

        Raises:
            ScheduleError: the block would read a reduction that is incomplete there, or one of its loops is on the grid.
        """

    def inline_map(
        self,
        block: str,
    ) -> None:
        """Computes a map of inputs where it is read, as often as it was computed or read before.

        before ⇒ after:
            for i, j: s[i, j] = x[i, j] * 0.5
            for i, j: m[i] max= s[i, j]               ⇒    for i, j: m[i] max= x[i, j] * 0.5
            for i, j: y[i, j] = s[i, j] / m[i]             for i, j: y[i, j] = x[i, j] * 0.5 / m[i]

        A reduction and a second pass over its row can then be one kernel, since neither waits for the stage.  A reader that
        would compute an element more than once, such as a product of matrices, is refused.

        Formal statement: the stage is elementwise, so an element is a function of inputs that its place names; a reader
        computes that function at the place it reads, and converts the value to the stage's dtype as the stage does.

        Args:
            block: the stage.

        Raises:
            ScheduleError: the stage is no map of inputs, is a result of the program, has a long value, or is read along
                further axes.
        """

    def materialize_tags(
        self,
        block: str,
    ) -> None:
        """Keeps the value of a reduction for every tag, in a scan buffer (array expansion); readers name the tag they read.

        before ⇒ after:
            X[i] = X[i] (f) e         ⇒   X⟨t⟩[i] = X⟨t-1⟩[i] (f) e
            … X[i] …  (in the loop)   ⇒   … X⟨t⟩[i] …
            … X[i] …  (after it)      ⇒   … X⟨last⟩[i] …

        Args:
            block: the reduction.

        Raises:
            ScheduleError: it is no reduction along a serial loop, or has its tags already.
        """

    def move_scale(
        self,
        block: str,
    ) -> str:
        """Moves divisions and factors that are constant along a product's sum behind the sum.

        before ⇒ after:
            for i, j: p[i, j] = e[i, j] / r[i]          for i, c, j: s[i, c] += e[i, j] * v[j, c]
            for i, c, j: o[i, c] += p[i, j] * v[j, c] ⇒ for i, c: o[i, c] = s[i, c] / r[i]

        A factor that is rounded to 16 bits for the product is rounded without the scale.  It is done only if, for finite
        inputs, no bound says that it overflows or underflows where the definition does not.

        Args:
            block: a stage that sums up products.

        Returns:
            The stage that is the sum without the scale.

        Raises:
            ScheduleError: the stage is no sum of products, no factor has such a scale, or the move may change which results
                are finite.
        """

    def privatize_reduction(
        self,
        loop: str,
    ) -> str:
        """Splits the reduction of "block.loop" along that loop: a local part per tile, and a global part in its own nest.

        before ⇒ after (j = j0 * 2 + j1):
            for j0, j1: X[i] = X[i] (f) e(j)   ⇒   for j0, j1: X_local[i, j0] = X_local[i, j0] (f) e(j0 * 2 + j1)
                                                   for j0:     X[i] = X[i] (f) X_local[i, j0]

        Args:
            loop: "block.loop", along which the block folds; split it first, by the size of a tile.

        Returns:
            The local block.

        Raises:
            ScheduleError: the loop is no reduction's, or each of its iterations folds one element.
        """

    def remark(
        self,
        text: str,
    ) -> None:
        """Adds a sentence for readers of the record; the program is unchanged.

        Args:
            text: the reason for the next steps of the schedule.

        Raises:
            ScheduleError: the text is empty.
        """

    def retire_tags(
        self,
        block: str,
    ) -> None:
        """Reduces a scan buffer to a previous and a current value (contraction): `X⟨t-1⟩` is X_0 and `X⟨t⟩` is X_1.

        before ⇒ after:
            for t:                            X_0[i] = initial
                X⟨t⟩[i] = X⟨t-1⟩[i] (f) e     for t:
                … X⟨t-1⟩[i], X⟨t⟩[i] …    ⇒       X_1[i] = X_0[i] (f) e
                                                  … X_0[i], X_1[i] …
                                                  X_0[i] = X_1[i]

        Args:
            block: the scan, a reduction with tags.

        Raises:
            ScheduleError: the block has no tags, or a value other than the previous and the current one is read.
        """

    def rolling_update(
        self,
        block: str,
        loop: str,
        maps: str = "auto",
        repair: str | None = None,
        proved: bool = True,
    ) -> tuple[str, ...]:
        """Fuses a reduction under a loop of the reductions that it depends on, and repairs it, in four phases.

        before ⇒ after (T the rolling loop):
            for t: R[i] = R[i] (fr) …                   for t: R⟨t⟩[i] = R⟨t-1⟩[i] (fr) …
            for t: X[i] = X[i] (f) g(R[i], c)     ⇒            X[i] = h(X[i], R⟨t-1⟩[i], R⟨t⟩[i]) (f) g(R⟨t⟩[i], c)

        Args:
            block: the reduction to fuse (L_t).
            loop: the rolling loop, "block.loop".
            maps: the elementwise stages between: "inline", "keep" as separate blocks, or "auto" (see
                `maps.reorganize_dataflow`).
            repair: h as text, over t, `<buffer>_before` and `<buffer>_now` of each producer; default: it is derived.
            proved: whether to refuse a given h that is not proved. False accepts it, and marks the program if it is wrong;
                a wrong program cannot be compiled to a kernel.

        Returns:
            The local blocks that were made.

        Raises:
            ScheduleError: the loop is not one of the producers' reductions, or there is nothing to repair.
            RepairError: no h exists, or the given one is not proved.
        """

    def share_stage(
        self,
        block: str,
    ) -> str:
        """Leaves out a stage that computes the same as an earlier one.

        before ⇒ after:
            for i, j: s[i, j] = x[i, j] * 0.5                   for i, j: s[i, j] = x[i, j] * 0.5
            for i, j: m[i] max= s[i, j]                         for i, j: m[i] max= s[i, j]
            for i, j: n[i] max= x[i, j] * 0.5              ⇒
            for i, j: y[i, j] = s[i, j] - n[i]                  for i, j: y[i, j] = s[i, j] - m[i]

        Formal statement: both stages have as many iterations of the same extents, fold along the same number of them with
        the same reducer and start, store in one dtype, and their terms are one expression over inputs and reductions once
        each read of an elementwise stage is replaced by what that stage computes in its own dtype.  So both stages hold
        the same numbers.

        Args:
            block: the later stage.

        Returns:
            The stage that is read instead.

        Raises:
            ScheduleError: no earlier stage computes the same, or the stage is a result of the program.
        """

    def split_concatenation(
        self,
        block: str,
    ) -> str:
        """Takes one more element at the end, or at the start, of a row out of what is computed along the row.

        before ⇒ after:
            for i, j: c[i, j] = where(j < 64, x[i, j], s[i])     for i, j: c_row[i, j] = x[i, j]
            for i, j: m[i] max= c[i, j]                       ⇒  for i, j: m_row[i] max= c_row[i, j]
                                                                 for i: m[i] = max(m_row[i], s[i])

        A stage along the row becomes one without the element, which is computed where it is read.  A reduction along the
        row folds the row without the element, and a stage of the reduction's name adds it.

        Args:
            block: the stage that concatenates.

        Returns:
            The stage that has the row without the element.

        Raises:
            ScheduleError: the stage is no concatenation of a row and one element, or a result has the row with the element.
        """

    def split_entropy(
        self,
        block: str,
    ) -> str:
        """Takes the softmax's sum out of a sum of probabilities times their logarithms.

        before ⇒ after, with u[i, j] = x[i, j] - max x[i] and s[i] the sum of exp(u[i, j]):
            for i, j: o[i] += exp(u[i, j] - log(s[i]))          for i, j: t[i] += exp(u[i, j]) * u[i, j]
                              * (u[i, j] - log(s[i]))       ⇒   for i: o[i] = t[i] / s[i] - log(s[i])

        The new sum depends on the maximum alone, so it can be taken in the loop of the maximum and of s.  The probability
        may also be written as exp(u) / s, and both factors may have a sign and a constant factor.

        Args:
            block: a stage that sums up the products.

        Returns:
            The sum of exp(x - max x) * (x - max x).

        Raises:
            ScheduleError: the stage is no such sum, or the logarithm is that of a probability which may be 0.
        """

    def split_k_update(
        self,
        block: str,
        loop: str,
        maps: str = "auto",
        repair: str | None = None,
        proved: bool = True,
    ) -> tuple[str, ...]:
        """Splits a reduction into parallel local ones and one that combines and repairs them, in four phases.

        before ⇒ after (t the split):
            R[i] = R[i] (fr) …              for t: R_local[i, t] = R_local[i, t] (fr) …
            X[i] = X[i] (f) g(R[i], c)  ⇒          X_local[i, t] = X_local[i, t] (f) g(R_local[i, t], c)
                                            for t: R[i] = R[i] (fr) R_local[i, t]
                                            for t: X[i] = X[i] (f) h(X_local[i, t], R_local[i, t], R[i])

        Args:
            block: the reduction to fuse (L_t).
            loop: the loop over splits, "block.loop".
            maps: as in `rolling_update`.
            repair: as in `rolling_update`; "before" is the split's own value of a producer, "now" its complete value.
            proved: as in `rolling_update`.

        Returns:
            The local blocks that were made.

        Raises:
            ScheduleError: the loop is not one of the producers' reductions, or there is nothing to repair.
            RepairError: no h exists, or the given one is not proved.
        """

    def tile_outermost(
        self,
        loop: str,
        size: int,
    ) -> str:
        """Moves the loop over tiles of an inner loop outside of its whole nest; blocks that do not need it are repeated.

        With the outermost loop bound to the grid, more programs share the work, each with a smaller tile, at the price of
        computing again what all of them need (MCFuser, III-A: the deep order of two products computes the first one for
        every tile of the second one's columns).

        before ⇒ after:
            for i:                                  for e0:
                for j: AB[i, j] = …                     for i:
                for j, e: C[i, e] += AB[i, j] …  ⇒          for j: AB[i, j] = …
                                                            for j, e1: C[i, e0 * size + e1] += AB[i, j] …

        Args:
            loop: "block.loop", a loop that only this block is in and that is one of its independent iterations.
            size: elements of a tile; it need not divide.

        Returns:
            The new outermost loop, as "block.loop".

        Raises:
            ScheduleError: a block of the nest folds along that dimension, reads it at other places than its own, or adds
                to a value that starts outside the nest.
        """
