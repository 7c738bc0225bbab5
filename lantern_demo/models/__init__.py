"""Models: networks, published files, devices."""

import sys

if sys.flags.optimize > 1:
    raise ValueError("Transformers needs docstrings, which python -OO drops; start without -OO")
