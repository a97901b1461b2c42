"""Small operators of many kinds, most of which no template fuses whole: `ODD` has the inputs and outputs of each."""

from tests.pipeline.odd import chains, more_chains, names_and_dtypes, reads, statistics
from tests.pipeline.odd.define import ODD, operator

__all__ = ["ODD", "chains", "more_chains", "names_and_dtypes", "operator", "reads", "statistics"]
