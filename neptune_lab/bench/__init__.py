"""The benchmark: our kernels and their alternatives in one run, checked and reported.

    from neptune_lab.bench.run import BenchmarkPlan, run

    results = run(BenchmarkPlan(out=Path("bench.json"), workers=14))

`neptune-lab bench` does this; `neptune-lab bench --report` draws the results that come with the package.
"""
