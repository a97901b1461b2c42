"""A plugin of pytest that plants a bug: `NEPTUNE_MUTATION=strides python -m pytest -p fuzz.planted …`."""

import os

from fuzz.mutants import FOLDER, plant, read

if os.environ.get("NEPTUNE_MUTATION"):
    plant(read(FOLDER / f"{os.environ['NEPTUNE_MUTATION']}.toml"))
