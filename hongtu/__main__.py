"""``python -m hongtu``."""

import sys

from hongtu.cli.main import program

if __name__ == "__main__":
    sys.exit(program())
