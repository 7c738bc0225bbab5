"""The version, in a separate file without imports, so that modules re-exported by the package can
import it.
"""

__version__ = "0.6.0"
