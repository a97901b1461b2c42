"""`python -m neptune_lab` is the command `neptune-lab`."""

from neptune_lab.cli import main

if __name__ == "__main__":
    main()
