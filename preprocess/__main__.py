"""``python -m hongtu.preprocess INPUT ARTIFACT ...`` is ``hongtu preprocess``."""

import sys

from hongtu.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["preprocess", *sys.argv[1:]]))
