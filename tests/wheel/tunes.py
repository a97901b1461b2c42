"""With [tune]: a scheduler with one worker, which says what device it has."""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import neptune_lab as nl
from neptune_lab.tuning.dask_workers import DaskWorkers

assert Path(nl.__file__).is_relative_to(sys.prefix), nl.__file__

if __name__ == "__main__":  # the worker's process imports this file again
    from dask.distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        workers = DaskWorkers(cluster.scheduler_address)
        try:
            assert workers.size == 2, workers.size
            assert workers.facts().triton
        finally:
            workers.close()
