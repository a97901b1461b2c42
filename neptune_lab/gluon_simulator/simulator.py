"""Runs an emitted Gluon module in NumPy: one thread for each group of warps, barriers that really block.

Numbers, and the order in which warps hand tiles to each other, are simulated; layouts and registers are not.  A slot
that is read too early, or released too early, gives numbers that are none (shared_copies.py).  If every thread waits at
a barrier, that is a deadlock.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np

from neptune_lab.gluon_simulator import language, shared_copies
from neptune_lab.gluon_simulator.steps import MODULE, Group, begin
from neptune_lab.gluon_simulator.threads import Crew, Named
from neptune_lab.gluon_simulator.tiles import Descriptor, Pointer, add_out, await_number, memory_of, tell

# What follows the last "_" of a partition's name, as the emitter writes it.
_PARTS = ("producer", "consumer", "relay")

# Barriers of the hardware between groups of warps and their relays, by the number of the first of two.
READY, SPENT = 10, 12


class Simulator:
    """Runs one module.

    Args:
        text: of the module, as the compiler emits it: it is executed.
        multiprocessors: of the GPU, for kernels whose grid depends on it.
        first_only: run the first program of each kernel alone.
        plain: what stands for the module's kernels in Triton, by name: functions of a launch's arguments, which are
            CPU tensors.  None: they are skipped, and what they store stays as it was allocated.
        limit: record the steps below this of every group of warps; 0: none.
        triton: what the module imports as `triton`, for its kernels in Triton to be run; its `language` is
            `triton.language`.  None: `plain` stands for them.

    Attributes:
        launched: how many kernels were launched.
        groups: what was recorded of the program that ran last.
    """

    def __init__(
        self,
        text: str,
        multiprocessors: int = 5,
        *,
        first_only: bool = False,
        limit: int = 0,
        plain: Mapping[str, Callable[..., None]] | None = None,
        triton: Any = None,
    ) -> None:
        self.program = self.programs = 0
        self.warps = 4  # of a launch
        self.space: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": self._import}}
        self.named: dict[int, Named] = {}
        self.crew = Crew()
        self.launched = 0
        self.groups: tuple[Group, ...] = ()
        self._first_only, self._limit, self._plain, self._triton = first_only, limit, plain, triton
        exec(compile(text, MODULE, "exec"), self.space)
        self.space["_sync"] = lambda barrier: self._named(barrier).sync()
        self.space["_arrive"] = lambda barrier: self._named(barrier).arrive()
        self.space |= self._of_relays()
        self.space["_meet"] = self.space["_keep_branch"] = lambda: None
        # (A consumer is one thread here, which waits for the other one alone.)
        self.space["_meet_of"] = lambda barrier, threads: self._named(barrier).sync() if threads > 128 else None
        self.space["_add_out"] = add_out
        self.space["_await"], self.space["_tell"] = await_number, tell
        self.space["_rest"] = self.crew.rest  # for tests that change the module
        self.space["_multiprocessors"] = lambda device: multiprocessors

    def __call__(self, entry: str, *tensors: Any) -> Any:
        """The module's entry on CPU tensors.

        Raises:
            Deadlock: every group of warps waits.
        """
        with np.errstate(all="ignore"):
            return self.space[entry](*tensors)

    def _of_relays(self) -> dict[str, Callable[..., None]]:
        """What a consumer of two groups of warps and their relays do at barriers of the hardware.  Such a consumer is
        one thread here, which meets both relays, and takes no turns."""

        def at_both(first: int, act: Callable[[Named], object]) -> Callable[[], None]:
            def both() -> None:
                for group in range(2):
                    act(self._named(first + group))

            return both

        return {
            **dict.fromkeys(("_open_turns", "_take_turn", "_pass_turn", "_keep_branch_of_both"), lambda: None),
            "_await_relay": at_both(READY, Named.sync),
            "_tell_relay": at_both(SPENT, Named.arrive),
            "_tell_group": lambda group: self._named(READY + group).sync(),
            "_await_group": lambda group: self._named(SPENT + group).sync(),
        }

    def _named(self, barrier: int) -> Named:
        with self.crew.condition:
            return self.named.setdefault(int(barrier), Named(self.crew))

    def _import(self, name: str, *rest: Any) -> Any:
        if not name.startswith("triton"):
            return builtins.__import__(name, *rest)
        wanted = rest[2] if len(rest) > 2 else None
        if not wanted and self._triton is not None:  # `import triton`, `import triton.language as tl`
            return self._triton
        gl = language.gluon_language(self.crew, lambda: self.program, lambda: self.programs, self._specialize)
        nan = SimpleNamespace(PropagateNan=SimpleNamespace(ALL="all", NONE="none"))
        names = {"TensorDescriptor": Descriptor, "builtin": lambda function: function, "ir": None, **language.hopper()}
        gluon, knobs = SimpleNamespace(jit=self._jit), SimpleNamespace(runtime=SimpleNamespace(interpret=False))
        return SimpleNamespace(gluon=gluon, jit=self._triton_jit, knobs=knobs, language=gl, **vars(nan), **names)

    def _triton_jit(self, function: Callable[..., Any]) -> Any:
        plain = self._plain

        class Jit:
            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
                def launch(*arguments: Any, **options: Any) -> None:
                    if plain is not None:
                        plain[function.__name__](*arguments)

                return launch

        return Jit()

    def _jit(self, function: Callable[..., Any] | None = None, **_: Any) -> Any:
        if function is None:  # (a decorator with arguments)
            return self._jit
        simulator = self

        class Jit:
            __name__ = function.__name__

            def __call__(self, *arguments: Any, **named: Any) -> Any:
                return function(*arguments, **named)

            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
                def launch(*arguments: Any, **options: Any) -> None:
                    flat = [a if isinstance(a, Descriptor | int) else Pointer(memory_of(a)) for a in arguments]
                    simulator.programs, simulator.launched = grid[0], simulator.launched + 1
                    simulator.warps = options.get("num_warps", 4)
                    # (The last one first: what it stores past its own rows, the next one does not overwrite.)
                    for program in reversed(range(1 if simulator._first_only else grid[0])):
                        simulator.program = program
                        simulator.named.clear()
                        simulator.crew.begin(1)
                        function(*flat)

                return launch

        return Jit()

    def _specialize(
        self, partitions: list[tuple[Any, tuple[Any, ...]]], warps: list[int], registers: list[int]
    ) -> None:
        assert len(partitions) == len(warps) + 1 == len(registers) + 1
        names = _names([function.__name__ for function, _ in partitions])
        sizes = (self.warps, *warps)  # the first partition has the warps that the kernel is launched with
        groups = [Group(name, size, self._limit) for name, size in zip(names, sizes, strict=True)]

        def run(group: Group, function: Any, arguments: tuple[Any, ...]) -> None:
            begin(group if self._limit else None)
            shared_copies.begin(self.crew.rest)
            try:
                with np.errstate(all="ignore"):
                    function(*arguments)
                shared_copies.end()
            finally:
                begin(None)
                self.crew.leave()

        self.crew.begin(len(partitions))
        with ThreadPoolExecutor(len(partitions)) as warps_at_work:
            running = [warps_at_work.submit(run, g, *p) for g, p in zip(groups, partitions, strict=True)]
            for thread in running:
                thread.result()
        self.crew.begin(1)
        self.groups = tuple(groups)


def _names(functions: list[str]) -> list[str]:
    """A name for each group: "consumer 0", "consumer 1", "producer"."""
    parts = [next((p for p in _PARTS if name.endswith(f"_{p}")), name) for name in functions]
    return [f"{p} {parts[:n].count(p)}" if parts.count(p) > 1 else p for n, p in enumerate(parts)]
