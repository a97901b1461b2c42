"""The tuner's space, model and search: MCFuser's method (its sections III and IV) for every template.

    from neptune_lab.autotune.cost_model import CostModel
    from neptune_lab.autotune.search import Search
    from neptune_lab.autotune.space import space

    candidates = space(operator, target)    # every combination of options that `limits` allows
    search = Search(candidates, CostModel(operator, target))    # Algorithm 1, ranked by Eqs. 2 to 5
    while candidates := search.ask(8):
        for candidate in candidates:
            search.tell(candidate, measure(candidate))  # microseconds, or None if it failed
    search.best                                        # (candidate, microseconds)

`expressions`, `dag`, `rules` and `waterfall` are the paper's own space, of tiling expressions; `nests` gives the
expression that our templates make of an operator, so that the same equations rank our candidates.  `ranking` ranks
them without measuring.  Nothing here compiles: `pipeline` does, and `tuning` measures.
"""
