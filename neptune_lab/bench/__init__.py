"""The benchmark: our kernels and what a user would take instead, in one run, checked and reported.

    from neptune_lab.bench.run import Plan, run

    results = run(Plan(out=Path("bench.json"), workers=14))

`neptune-lab bench` does this; `neptune-lab bench --report` draws the results that come with the package.
"""
