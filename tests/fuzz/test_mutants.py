"""The planted bugs still fit the compiler, and the checks that look for them find a few at once."""

from __future__ import annotations

import os

import pytest

from fuzz import find_mutants, mutants
from fuzz.battery import validation
from fuzz.mutants import Mutation, mutations

ALL = {m.name: m for m in mutations()}


def test_each_mutation_names_what_finds_it():
    for mutation in ALL.values():
        assert mutation.why, mutation.name
        assert mutation.old != mutation.new, mutation.name
        assert mutation.tests or mutation.validation, f"nothing finds {mutation.name}"
        for path, _, test in (found.partition("::") for found in mutation.tests):
            text = (mutants.ROOT / path).read_text(encoding="utf-8")
            assert not test or f"def {test.partition('[')[0]}(" in text, f"{mutation.name}: {path} has no {test}"


@pytest.mark.one_in(21)
@pytest.mark.parametrize("name", ALL)
def test_a_mutation_fits_its_function(name: str):
    """Where this fails, the function was changed: write the mutation for what it is now."""
    mutation = ALL[name]
    code = mutants._code_of(compile(mutation.source(), "mutated", "exec"), mutation.qualified)
    assert code.co_name == mutation.qualified.rpartition(".")[2]


def test_a_text_that_is_gone_is_an_error():
    mutation = Mutation("gone", "", "neptune_lab.htile_to_triton.addresses:strides", "no such text", "")
    with pytest.raises(LookupError, match="has the old text 0 times: no such text"):
        mutation.source()
    with pytest.raises(LookupError, match="has no stride"):
        Mutation("gone", "", "neptune_lab.htile_to_triton.addresses:stride", "", "").source()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="planting needs fork")
def test_a_planted_bug_is_found_and_stays_in_its_copy():
    from neptune_lab.htile_to_triton.addresses import strides

    found = find_mutants.in_a_copy(lambda: str(strides((2, 3, 4))), ALL["strides"])
    assert found == "(24, 4, 1)"
    assert strides((2, 3, 4)) == (12, 4, 1)
    assert find_mutants.in_a_copy(validation, ALL["accumulators"]) == ALL["accumulators"].validation
