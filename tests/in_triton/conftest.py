"""Tests that only run where `tests/test_kernels.py` starts their file, in a process of its own:
Triton reads TRITON_INTERPRET when it is imported. No folder here is named triton, which would be
found in the place of a package that is missing.
"""

from __future__ import annotations

collect_ignore_glob = ["test_*"]  # a file that a command names is collected all the same
