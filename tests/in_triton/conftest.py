"""Tests that only run where `tests/test_kernels.py` starts their file, since Triton reads
TRITON_INTERPRET at its import. A folder named triton would be found in a missing package's place.
"""

collect_ignore_glob = ["test_*"]  # a file that a command names is collected all the same
