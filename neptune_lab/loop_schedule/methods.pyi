# Written from the primitives' declarations: pytest tests/loop_schedule/test_methods.py --update-golden

from collections.abc import Iterable

class PrimitiveMethods:
    def split(
        self,
        loop: str,
        factors: Iterable[int | None],
        names: Iterable[str] | None = None,
    ) -> tuple[str, ...]:
        """`for j` becomes `for j0: for j1: …` with these extents, of which at most one is None (computed).

        before ⇒ after, with factors (None, 64):
            for j in range(256):              for j0, j1 in grid(4, 64):
                X[j] = e(j)             ⇒         X[j0 * 64 + j1] = e(j0 * 64 + j1)

        Sizes that do not divide get a guard.

        Args:
            loop: "block.loop".
            factors: extents of the new loops, outermost first; at most one is None, which is computed.
            names: of the new loops; default: j0, j1, …

        Returns:
            The new loops, outermost first, as "block.loop".

        Raises:
            ScheduleError: the factors do not cover the loop, or a name is taken.
        """

    def reorder(
        self,
        block: str,
        *loops: str,
    ) -> tuple[str, ...]:
        """Reorders loops around `block`.

        before ⇒ after, with loops ("j", "i"):
            for i, j: X[i, j] = e    ⇒    for j, i: X[i, j] = e

        Args:
            block: a block inside the loops.
            loops: two or more of the loops around it, named without the block.

        Returns:
            The loops in their new order, as "block.loop".

        Raises:
            ScheduleError: the loops are not of one nest, or the block is a reduction that would fold in another order.
        """

    def fuse(
        self,
        block: str,
        *loops: str,
        name: str | None = None,
    ) -> str:
        """Fuses nested loops into one, called `name` (default: their names joined).

        before ⇒ after, for i of 4 and j of 8:
            for i, j in grid(4, 8): X[i, j] = e    ⇒    for ij in range(32): X[ij // 8, ij % 8] = e

        Args:
            block: a block inside the loops.
            loops: two or more loops that follow each other directly, outermost first, named without the block.
            name: of the new loop; default: their names joined.

        Returns:
            The new loop, as "block.loop".

        Raises:
            ScheduleError: the loops do not follow each other, or the name is taken.
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
            tiles: the size of a tile along each loop, in elements: `sch.tile("qk", i=128, j=64)`.

        Returns:
            The outer loops, then the inner ones, as "block.loop".

        Raises:
            ScheduleError: there is no such loop, or the loops cannot be reordered.
        """

    def bind(
        self,
        loop: str,
        thread: str,
    ) -> None:
        """Binds a loop to a grid axis: its iterations become program instances.

        before ⇒ after:
            for i in range(4): X[i] = e    ⇒    for i in range(4):  # blockIdx.x
                                                    X[i] = e

        Args:
            loop: "block.loop".
            thread: "blockIdx.x", "blockIdx.y" or "blockIdx.z".

        Raises:
            ScheduleError: a block carries a value along the loop, or the nest has a loop on that axis already.
        """

    def compute_at(
        self,
        block: str,
        loop: str,
    ) -> None:
        """Moves a producer under a loop of its consumer, where it computes just what is needed there.

        before ⇒ after:
            for i, j: A[i, j] = a                for i:
            for i, j: B[i, j] = b(A[i, j])  ⇒        for j: A[i, j] = a
                                                     for j: B[i, j] = b(A[i, j])

        Args:
            block: the producer.
            loop: "block.loop", around all that reads it.

        Raises:
            ScheduleError: a reader is outside the loop, or would read too early.
        """

    def reverse_compute_at(
        self,
        block: str,
        loop: str,
    ) -> None:
        """Moves a consumer under a loop of its producers.

        before ⇒ after:
            for i, j: A[i, j] = a                for i, j:
            for i, j: B[i, j] = b(A[i, j])  ⇒        A[i, j] = a
                                                     B[i, j] = b(A[i, j])

        All that the consumer reads is complete there: a reduction that the loop still folds along is refused.

        Args:
            block: the consumer.
            loop: "block.loop", around all that it reads.

        Raises:
            ScheduleError: what it reads is written outside the loop, or is not complete inside.
        """

    def inline(
        self,
        block: str,
    ) -> None:
        """Inlines an elementwise block into its consumers.

        before ⇒ after:
            for i, j: E[i, j] = exp(A[i, j])     for i, j: S[i] += exp(A[i, j])
            for i, j: S[i] += E[i, j]        ⇒

        Args:
            block: the elementwise block.

        Raises:
            ScheduleError: the block is a reduction, writes an output, or carries a value between iterations.
        """

    def cache_read(
        self,
        block: str,
        buffer: str,
        scope: str = "shared",
    ) -> str:
        """Makes `block`, and every later reader of `buffer`, read a copy in `scope`, which a new block writes.

        before ⇒ after, with scope "shared":
            for i, j: B[i] += A[i, j]    ⇒    for i, j: A_shared[i, j] = A[i, j]
                                              for i, j: B[i] += A_shared[i, j]

        Args:
            block: the first reader of the copy.
            buffer: what is copied.
            scope: memory of the copy, "local", "shared" or "global".

        Returns:
            The block that makes the copy.

        Raises:
            ScheduleError: the block does not read the buffer, or there is such a copy already.
        """

    def cache_write(
        self,
        block: str,
        scope: str = "local",
    ) -> str:
        """Makes `block` write to a copy in `scope`, which a new block stores to the buffer.

        before ⇒ after, with scope "local":
            for i, j: B[i] += A[i, j]    ⇒    for i, j: B_local[i] += A[i, j]
                                              for i: B[i] = B_local[i]

        Args:
            block: the block that writes.
            scope: memory of the copy, "local", "shared" or "global".

        Returns:
            The block that stores the copy.

        Raises:
            ScheduleError: the buffer keeps one value per tag, or there is such a copy already.
        """

    def set_scope(
        self,
        block: str,
        scope: str = "shared",
    ) -> None:
        """Puts the buffer that `block` writes into `scope`: "shared" and "local" are on chip.

        Triton places on-chip tiles itself, so the two mean the same there. A buffer left in global memory is written
        there only if another kernel, or the caller, reads it.

        Args:
            block: the block that writes the buffer.
            scope: "local", "shared" or "global".

        Raises:
            ScheduleError: the buffer is an output, which is in global memory.
        """

    def decompose_reduction(
        self,
        block: str,
        loop: str,
    ) -> str:
        """Moves the start value of a reduction before `loop`, to a separate block.

        before ⇒ after, at loop j:
            for i, j: X[i] = X[i] (f) e    ⇒    for i:
                                                    X[i] = initial
                                                    for j: X[i] = X[i] (f) e

        Args:
            block: a reduction that still starts itself.
            loop: "block.loop", the outermost loop that the block folds along, or one outside it.

        Returns:
            The block that writes the start value.

        Raises:
            ScheduleError: the block has no start value, or folds along a loop outside `loop`.
        """

    def annotate(
        self,
        loop: str,
        key: str,
        value: str | int = 1,
    ) -> None:
        """Annotates a loop; no result changes.

        "num_warps" and "num_stages" reach the launch; they belong to the outermost loop of a nest or to one on the grid,
        and are refused elsewhere when the program becomes tiles. "sequential" keeps a loop from being a dimension of a
        tile. "note" is text for readers.

        Args:
            loop: "block.loop".
            key: "num_warps", "num_stages", "sequential" or "note".
            value: an int, or the words of a note.

        Raises:
            ScheduleError: the value is not allowed for this key.
        """

    def cut(
        self,
        block: str,
    ) -> None:
        """Separates the program before `block`: the two parts never share a kernel, and each is scheduled on its own.

        before ⇒ after:
            for i, j: m[i] max= x[i, j]             for i, j: m[i] max= x[i, j]
            for i, j: s[i] += x[i, j] / m[i]   ⇒    ----- s -----
                                                    for i, j: s[i] += x[i, j] / m[i]

        Args:
            block: the first block after the cut; its nest contains no block of an earlier stage.

        Raises:
            ScheduleError: nothing comes before the block, or it shares a nest with what does.
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
