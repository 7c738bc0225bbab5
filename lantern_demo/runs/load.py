"""Load a model: `lantern_demo.load`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from lantern_demo.faults import NotAllowed
from lantern_demo.models import bundled, checkpoints, families
from lantern_demo.models.checkpoints import requirements_unmet
from lantern_demo.models.device import DTYPES, pick_device
from lantern_demo.models.registry import REGISTRY, ModelInfo, model_info
from lantern_demo.paths import user_path
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.settings.settings import Settings
from lantern_demo.torch_defaults import own_defaults


@own_defaults()
def load(
    model: str | Path = "lantern-scenes",
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    folder: str | Path | None = None,
    drafter: str | Path | None = None,
    threads: int | None = None,
) -> Pipeline:
    """Load a model by its registry id, or from a folder in the format of the bundled one.

    device: "auto", "cpu", "cuda", "cuda:N". dtype, of target and drafter: "float32", "bfloat16",
    "float16", PyTorch's dtypes of these names, or "auto". "auto" is float32 for the bundled model,
    and 16 bits for a published one: bfloat16, or float16 on a GPU that lacks it. A published model
    is fetched from the Hub at its first start. `folder` is a local folder with its files instead
    (see `models.checkpoints`). `drafter` is a folder with a drafter that replaces the published
    one, trained here or by LANTERN's code. threads: how many threads of a CPU compute; None: see
    `models.device.pick_threads`. Raises ValueError for an unknown model, device or dtype, an
    impossible number of threads and an unreadable folder; also for a published model that does not
    fit this machine, or whose files cannot be fetched or are wrong.
    """
    chosen = pick_device(device)
    info = info_of(model)
    name = families.dtype_of(info, dtype, chosen)
    files = checkpoints.files_folder(info, folder)
    if info.folder is not None:
        if drafter is not None:
            got = f"got {str(drafter)!r}"
            raise ValueError(f"drafter is for published models; {info.id} has its own, {got}")
        networks: bundled.Networks = bundled.load(info.folder, chosen, DTYPES[name])
        sized = replace(info, image_size=networks.image_size, grid=networks.tokenizer.grid)
        return Pipeline(sized, networks, chosen, name, threads)
    if reason := requirements_unmet(info, chosen, name, files):
        raise ValueError(f"{info.id} cannot run here: {reason}")
    given = None if drafter is None else user_path(drafter)
    networks = checkpoints.load(info, chosen, DTYPES[name], files, given)
    return Pipeline(info, networks, chosen, name, threads)


def check_id(info: ModelInfo, model: str) -> None:
    """Raise NotAllowed for the id of another model."""
    if model != info.id:
        raise NotAllowed("model", f"must be {info.id}, which draws here, got {model[:80]!r}")


def info_of(model: str | Path) -> ModelInfo:
    """Return the facts of a model without loading it; those of a folder lack the picture's size.

    Raises ValueError for an unknown id, and for a folder whose preset is not allowed.
    """
    if not isinstance(model, (str, Path)):
        raise ValueError(f"model must be a name or a folder, got {type(model).__name__}")
    folder = user_path(model)
    # unlike Path.is_dir, it answers for a name that no file system takes
    there = os.path.isdir(folder)  # noqa: PTH112
    if isinstance(model, str) and (model in REGISTRY or not there):
        return model_info(model)
    preset = bundled.preset_of(folder)
    try:
        Settings().with_changes(**preset)
    except ValueError as error:
        raise ValueError(f"preset in {folder / 'config.json'}: {error}") from None
    return ModelInfo(
        folder.name,
        folder.name,
        "A model from a local folder.",
        image_size=0,
        grid=bundled.grid_of(folder),
        max_prompt=200,
        folder=folder,
        preset=preset,
    )
