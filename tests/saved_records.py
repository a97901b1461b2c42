"""Records as earlier versions saved them, one per schema: tests/saved/attention_schema_N.json.gz.

`python tests/saved_records.py` writes the one of the current schema, if it is missing. An existing one is never
changed: it stands for the files that people keep.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from neptune_lab.trace import SCHEMA, Trace, from_json, to_json

FOLDER = Path(__file__).resolve().parent / "saved"


def path(schema: int) -> Path:
    return FOLDER / f"attention_schema_{schema}.json.gz"


def text(schema: int) -> str:
    return gzip.decompress(path(schema).read_bytes()).decode()


def saved(schema: int) -> Trace:
    return from_json(text(schema))


def main() -> None:
    if path(SCHEMA).exists():
        raise SystemExit(f"{path(SCHEMA)} exists: a change of the record's fields raises SCHEMA in trace/record.py")
    import neptune_lab as nl

    operator = nl.operators.attention.causal(batch=1, heads=1, seq=8, head_dim=4)
    kernel = nl.compile(operator, block_q=4, block_kv=4)
    path(SCHEMA).write_bytes(gzip.compress(to_json(kernel.trace).encode(), mtime=0))
    print(path(SCHEMA))


if __name__ == "__main__":
    main()
