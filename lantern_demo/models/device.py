"""Devices, number formats and thread counts."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from lantern_demo.models.memory import control_groups

THREADS = "LANTERN_THREADS"  # an environment variable: the number of CPU threads that compute
MOST_THREADS = 1024
# files of a control group of version 2 and 1: microseconds of processor time in a period, and its
QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
# an environment variable of OpenMP: passive threads sleep while they wait for each other
WAITS = "OMP_WAIT_POLICY"
OPENMP = "OMP_NUM_THREADS"
_USUAL_THREADS = torch.get_num_threads()  # before this package changes it

# exists where NVIDIA's driver is loaded, with its version
DRIVER = Path("/proc/driver/nvidia/version")

# pip leaves an installed build unchanged unless it is forced to exchange it. Without the bound of
# requirements.txt it would bring a release that the next installation of them takes away.
WITH_CUDA = (
    'pip install --force-reinstall "torch<2.14" --index-url https://download.pytorch.org/whl/cu128'
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(device: str | torch.device) -> torch.device:
    """Return the torch device of a name; "auto" is CUDA's if there is one.

    Raise ValueError for a name that is not allowed, and for a device that does not exist here.
    """
    device = str(device)  # also a torch.device
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = re.fullmatch(r"cpu|(cuda)(?::(\d{1,3}))?", device)
    if found is None:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r:.80}")
    if not found[1]:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sentences = [f"device {device!r} is not available here; use auto or cpu", unused_gpu()]
        raise ValueError(". ".join(filter(None, sentences)))
    if int(found[2] or 0) >= (there := torch.cuda.device_count()):
        raise ValueError(f"device {device!r} is not available here; there are {there}, from cuda:0")
    return torch.device("cuda", int(found[2])) if found[2] else torch.device("cuda")


def unused_gpu() -> str | None:
    """Return a sentence, with the remedy, if PyTorch cannot use an NVIDIA GPU of this machine.

    Return None if a GPU is used, absent or hidden by CUDA_VISIBLE_DEVICES.
    """
    if torch.cuda.is_available() or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    if not DRIVER.exists() and shutil.which("nvidia-smi") is None:
        return None
    text = DRIVER.read_text(encoding="utf-8") if DRIVER.exists() else ""
    found = re.search(r"\d+\.\d[\d.]*", text)
    machine = f"This machine has NVIDIA's driver{f' {found[0]}' if found else ''}"
    if torch.version.cuda is None:
        fault = f"PyTorch {torch.__version__} is built without CUDA"
        remedy = f"Install a build with CUDA: {WITH_CUDA}"
    else:
        build = f"PyTorch {torch.__version__}, built for CUDA {torch.version.cuda}"
        fault = f"{build}, finds no GPU that it can use"
        remedy = (
            "Mostly the driver is too old for it: update it, or install a build for an older CUDA."
        )
    return f"{machine}, but {fault}, so everything runs on the processor. {remedy}"


def device_name(device: torch.device) -> str:
    """Return the device in words: the GPU's name, or the processor with its thread count."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    count = torch.get_num_threads()
    return f"{processor_name()} ({count} thread{'' if count == 1 else 's'})"


def processor_name() -> str:
    """Return the processor in words, or its architecture where the system does not tell."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as f:
            names = (line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def half(device: torch.device) -> str:
    """Return the 16-bit number format of a device: bfloat16, or float16 on a GPU that lacks it."""
    if device.type != "cuda":
        return "bfloat16"
    with torch.cuda.device(device):  # the question below is about the current one
        there = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if there else "float16"


@dataclass(frozen=True)
class Threads:
    """The number of threads that compute on a CPU, and the reason for it."""

    count: int
    reason: str

    def use(self) -> None:
        """Compute with this number from now on, in the thread that calls this."""
        if torch.get_num_threads() != self.count:
            torch.set_num_threads(self.count)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Compute with this number inside, and afterwards with the caller's again."""
        callers = torch.get_num_threads()
        self.use()
        try:
            yield
        finally:
            Threads(callers, "as the caller says").use()


def processors(root: Path = Path("/")) -> int:
    """Return how many threads can compute at once.

    It is PyTorch's own number, limited to the whole processors that every control group allows.
    `root` is the folder of /proc and /sys.
    """
    counts = [_USUAL_THREADS]
    for group, files in product(control_groups("cpu", root), QUOTAS):
        with suppress(OSError, ValueError):  # no such file, or no quota
            quota, period = map(
                int, " ".join((group / name).read_text(encoding="utf-8") for name in files).split()
            )
            if quota > 0:  # -1 is none
                counts.append(quota // period)
    return max(1, min(counts))


def pick_threads(threads: int | None, device: torch.device, small: bool) -> Threads:
    """Return the number of CPU threads to compute with.

    `small`: a model on a CPU whose operations are short.

    Threads wait for each other after every operation, some 200 times a token. A small model's
    operations are so short that this takes as long as they do: one thread. A large one's wait for
    weights, which several threads fetch sooner. But threads that spin while they wait occupy the
    processor of the thread that they wait for, once another program is busy on it. A pass then
    takes many times as long. So there are several only where they sleep while they wait: where this
    package was imported before PyTorch, or the environment sets `WAITS` to passive.

    Raise ValueError for anything but a whole number between 1 and `MOST_THREADS`.
    """
    named = "threads" if threads is not None else THREADS
    given = threads if threads is not None else os.environ.get(THREADS) or None
    if given is not None:
        try:
            count = int(given) if isinstance(given, (int, str)) and given is not True else 0
        except ValueError:
            count = 0
        if not 1 <= count <= MOST_THREADS:
            raise ValueError(
                f"{named} must be a whole number between 1 and {MOST_THREADS}, got {given!r}"
            )
        return Threads(count, f"as {named} says")
    # OpenMP ignores values that are no number, such as the 7500m of a container's processor time
    if re.match(r" *\+?0*[1-9]\d* *(,|$)", os.environ.get(OPENMP, "")):
        return Threads(_USUAL_THREADS, f"as {OPENMP} says")
    if device.type != "cpu":
        return Threads(_USUAL_THREADS, "as PyTorch chooses")
    if small:
        why = "more would wait for each other wherever anything else runs"
        return Threads(1, f"a small model: {why}")
    if os.environ.get(WAITS, "").lower() != "passive":
        why = f"{WAITS} was not passive when PyTorch was loaded"
        return Threads(1, f"more would spin while they wait for each other: {why}")
    why = "its passes wait for weights, and threads sleep while they wait for each other"
    return Threads(processors(), f"a large model: {why}")
