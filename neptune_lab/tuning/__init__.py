"""Compiles and measures what `autotune` proposes, in other processes and on other machines, and records the results.

`tune` is the loop; `workers` and `dask_workers` measure, `record_writer` keeps, `bundle` and `report` carry away.
"""
