"""A benchmark of problems that nobody tuned: sizes, masks and dtypes drawn from a distribution with a seed."""
