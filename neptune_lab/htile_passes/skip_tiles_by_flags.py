"""Skips tiles of columns before the first and after the last one that an input flags, such as a mask of keys."""

from __future__ import annotations

from collections.abc import Iterator

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Env
from neptune_lab.htile.walk import conjuncts
from neptune_lab.htile_passes.input_comparisons import conditions, trips
from neptune_lab.htile_passes.partition_masked_loops import is_few_rows
from neptune_lab.htile_passes.partition_masked_loops.noop_iterations import NoOpProver
from neptune_lab.htile_passes.position_flags import TILES, ends_of_flags, flag_of, flagged_tiles
from neptune_lab.htile_passes.position_limits import tiles_of
from neptune_lab.htile_passes.rewrite import Rewrite, tile_pass
from neptune_lab.htile_passes.skip_tiles_by_positions import Hiding, Skipper, around_of, is_bounded


@tile_pass(before="partition_masked_loops")
def skip_tiles_by_flags(program: ir.Program) -> Rewrite:
    """Before => after, in a loop that waits for memory, as in decoding:

        for j0 in range(4):
            score[...] = where(mask[b, 0, NewAxis, js*256+j0*64:js*256+j0*64+64] != 0, qk[...], -inf)
        =>
        j0_flagged[0:4] = reduce(max, where(gather(mask, b, 0, js*256 + tiles*64 + …) != 0, 1, 0))
        j0_first[] = reduce(min, where(j0_flagged[0:4] != 0, tiles, 4))
        j0_last[] = reduce(max, where(j0_flagged[0:4] != 0, tiles + 1, 0))
        for j0 in range(4) within j0_first[], j0_last[]:
            score[...] = where(mask[b, 0, NewAxis, js*256+j0*64:js*256+j0*64+64] != 0, qk[...], -inf)

    Formal statement: see `position_flags.ends_of_flags`.  An iteration outside is proven to change nothing that is read
    afterwards, as for tiles that positions hide (`partition_masked_loops`).  It may be that no tile is visited.
    """
    return _FlagSkipper(program).rewrite()


class _FlagSkipper(Skipper):
    def one_tile(self, kernel: ir.Kernel, env: Env, prover: NoOpProver) -> ir.Kernel:
        return kernel  # (its flags would have to be there before it asks for its tile)

    def hiding(self, kernel: ir.Kernel, loop: ir.For, env: Env, prover: NoOpProver) -> Iterator[Hiding]:
        """The conditions of a loop of few rows with flags that hide tiles."""
        if is_bounded(loop) or not is_few_rows(loop, env, kernel, self.program):
            return
        around, count = around_of(self.program, kernel, loop, env), trips(loop, env)
        for condition in dict.fromkeys(conditions(loop)):
            for part in conjuncts(condition):
                flag = flag_of(part, around)
                tiles = None if flag is None else tiles_of(flag.columns, loop.var, count)
                if flag is None or tiles is None:
                    continue
                value = flagged_tiles(flag, tiles, self.program)
                if value is None:
                    continue
                proof = prover(loop, lambda mask, false=condition: mask == false)
                if proof.proven:
                    name = self.tile(f"{loop.var}_flagged", ir.Tensor("", (count,), "int32", "chip"))
                    flagged = ir.Access(name, (ir.Slice(ir.Int(0), count, TILES),))
                    store = ir.Store(f"{loop.node_id}/flagged", flagged, value, loop.origin)
                    yield Hiding((ends_of_flags(flagged, count),), str(flag), proof, (store,))
                    return


__all__ = ["skip_tiles_by_flags"]
