"""Random programs through every stage of the compiler: `python -m fuzz --help`, run from tests/."""
