"""``python -m hongtu``."""

import sys

from hongtu.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
