"""python -m lantern_demo.export custom-generate OUT: the decoding module for other people's programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from lantern_demo.export.custom_generate import write


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(
        prog="python -m lantern_demo.export", description="Decoding methods for other people's programs."
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    folder = kinds.add_parser("custom-generate", help="a folder for transformers' generate(custom_generate=OUT)")
    folder.add_argument("out", metavar="OUT", type=Path, help="an empty folder, or one that is not there yet")
    try:
        written = write(out := parser.parse_args().out)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    asked = f"custom_generate={str(out)!r}, trust_remote_code=True, lantern_method='sjd'"
    print(f"{out}: {len(written)} files. model.generate(..., {asked})")


if __name__ == "__main__":
    main()
