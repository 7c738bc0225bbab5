"""LANTERN's neighbours of the tokens that a model of transformers draws: from its own codebook, or from a table in a file."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from torch import Tensor

from lantern_demo.export.readers import TextReader
from lantern_demo.models.neighbours import neighbour_table


def look_alikes(reader: TextReader, columns: int, path: str | Path | None) -> Tensor | None:
    """Each token's nearest others [V, k] int64, nearest first, with at least `columns` of them where there are as many.

    path: a table in a .npy or PyTorch file, whose rows and entries are numbers of drawn tokens; None: the model's own codebook.
    Raises ValueError, which names lantern_neighbours, where there is neither, and for a table that does not fit.
    """
    columns = min(columns, reader.vocabulary - 1)
    if columns == 0:
        return None
    if path is not None:
        return _checked(_read(Path(path)), reader, columns, str(path))
    found = reader.codes()
    if found is None:
        raise ValueError(
            "lantern_neighbours is None, and what is drawn has no codebook that is known here; allowed are the path of a table "
            "[vocabulary, lantern_k or more], or lantern_image=True with a Chameleon or a Janus"
        )
    vectors, code = found
    return neighbour_table(vectors[code], columns).long().to(reader.prompt.device)


def _read(path: Path) -> Tensor:
    """The table of a file."""
    try:
        if path.suffix == ".npy":
            table = torch.from_numpy(numpy.load(path).astype("int64"))
        else:
            table = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each library has faults of its own
        raise ValueError(
            f"lantern_neighbours is {str(path)!r}, which cannot be read as .npy or a PyTorch file: {error}"
        ) from error
    if not isinstance(table, Tensor):
        raise ValueError(f"lantern_neighbours is {str(path)!r}; it must hold one tensor and nothing else")
    return table


def _checked(table: Tensor, reader: TextReader, columns: int, path: str) -> Tensor:
    """A table of numbers of tokens, on the reader's device."""
    size = reader.vocabulary
    if table.dim() != 2 or table.shape[0] != size or table.shape[1] < columns or table.is_floating_point():
        raise ValueError(
            f"lantern_neighbours is {path!r}, a table of {table.dtype} {list(table.shape)}; it must be of whole numbers "
            f"[{size}, {columns} or more]"
        )
    table = table[:, :columns].long()
    if int(table.min()) < 0 or int(table.max()) >= size:
        raise ValueError(f"lantern_neighbours is {path!r}, which has entries out of range; they must be 0 to {size - 1}")
    return table.to(reader.prompt.device)
