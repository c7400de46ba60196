"""Builds the package; pyproject.toml holds the metadata.

``hongtu/preprocess`` and ``hongtu/cuda_ext`` are symlinks to the top-level folders: setuptools follows them, so
wheels and source distributions contain plain files and only the name ``hongtu`` is installed.
"""

from setuptools import find_packages, setup

setup(
    packages=find_packages(include=["hongtu", "hongtu.*"]),
    package_data={"hongtu": ["py.typed"], "hongtu.cuda_ext": ["*.cu", "*.cuh"], "hongtu.bench.report": ["*.html"]},
)
