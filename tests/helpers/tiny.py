"""A complete model folder with small random weights, on which the program runs in moments."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import httpx
import pytest
import torch
from space import free_port
from transformers import JanusVQVAEConfig, T5Config

from examples.make_bundled_model.folder import save
from examples.make_bundled_model.networks import word_tokenizer
from examples.make_bundled_model.world import vocabulary
from lantern_demo.models import bundled
from lantern_demo.models.llamagen import Drafter, LlamaGen
from lantern_demo.models.registry import DrafterConfig, LlamaGenConfig
from lantern_demo.models.text import TextEncoder
from lantern_demo.models.tokenizer import ImageTokenizer, PictureDecoder

if TYPE_CHECKING:
    from lantern_demo.ui.components import Widgets
    from lantern_demo.ui.service import Service


def awaited(answer: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns. A test's own thread may have a browser's loop."""
    with ThreadPoolExecutor() as threads:
        return threads.submit(asyncio.run, answer).result()


def vq_config(
    channels: int, multipliers: Sequence[int], *others: int, **more: int
) -> JanusVQVAEConfig:
    """An image tokenizer's: also its blocks, the width of its latent, and its codebook's sizes."""
    names = "num_res_blocks", "latent_channels", "embed_dim", "num_embeddings"
    sizes = {"base_channels": channels, "channel_multiplier": list(multipliers)}
    return JanusVQVAEConfig(**sizes, **dict(zip(names, others, strict=True)), **more)


def small_t5(words: int, width: int, layers: int) -> T5Config:
    """The configuration of a text encoder of so many words."""
    return T5Config(
        vocab_size=words,
        d_model=width,
        num_heads=width // 64,
        d_ff=2 * width,
        num_layers=layers,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        use_cache=False,
        eos_token_id=2,
    )


def write_tiny_model(
    folder: Path, grid: int = 8, vocab: int = 64, scale: int = 1, prefix: int = 24, layers: int = 2
) -> Path:
    """Write a model of grid x grid tokens to `folder` and return it, always with the same weights;
    with a `scale` above 1 it has a picture decoder, whose pictures are so many times as wide as the
    tokenizer's.
    """
    torch.manual_seed(0)
    words = word_tokenizer(vocabulary())
    sizes: dict[str, int] = {"dim": 64, "heads": 2, "ffn": 64}
    sizes |= {"vocab": vocab, "grid": grid, "prefix": prefix}
    picture = vq_config(32, (1, 1, 1, 1), 1, 32, 8, vocab, num_patches=grid)
    networks = bundled.Networks(
        TextEncoder(words, small_t5(words.get_vocab_size(), 64, 1), prefix),
        LlamaGen(LlamaGenConfig(**sizes, layers=layers, caption_dim=64)),
        Drafter(DrafterConfig(**sizes)),
        ImageTokenizer(picture),
        {"steps": 0},
    )
    for part in (networks.target, networks.drafter):
        for name, weight in part.named_parameters():
            if weight.dim() > 1:  # strong enough that the distributions are not flat
                std = 1.0 if "embed" in name else 1.5 * weight.shape[1] ** -0.5
                torch.nn.init.normal_(weight, std=std)
    if scale > 1:
        sizes_of_picture = picture.to_diff_dict() | {"out_channels": 3 * scale**2}
        networks.picture = PictureDecoder(JanusVQVAEConfig(**sizes_of_picture))
    save(folder, networks, torch.float32)
    return folder


def strong(
    module: torch.nn.Module, embedding: float = 1.0, gain: float = 1.5, spread: float = 0.1
) -> Any:
    """A network with random weights, strong enough that prompts and tokens matter."""
    for name, weight in module.named_parameters():
        if weight.dim() > 1 and "_norm." not in name:
            std = embedding if "embed" in name else gain * weight.shape[1] ** -0.5
            torch.nn.init.normal_(weight, std=std)
        else:
            mean = 0.0 if name.endswith("norm.bias") else 1.0
            torch.nn.init.normal_(weight, mean=mean, std=spread)
    return module.requires_grad_(False).eval()


class Evil:
    """Something that makes a folder `ran` when it is unpickled by the trusting."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@contextmanager
def served(model: str | Path) -> Iterator[tuple[str, Any]]:
    """The demo, served from this process: its address and its page."""
    from lantern_demo.ui.page import build, launch

    page = build(model, "cpu")
    page.lantern_service.wait()
    _, url, _ = launch(
        page, server_name="127.0.0.1", server_port=free_port(), prevent_thread_lock=True, quiet=True
    )
    try:
        yield url, page
    finally:
        page.close(verbose=False)


def wait_for(condition: Callable[[], Any], what: str = "it", seconds: float = 60) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.02)


def spied(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[tuple[Any, ...]]:
    """The arguments of every later call of a method."""
    real: Callable[..., Any] = getattr(owner, name)
    calls: list[tuple[Any, ...]] = []

    def spy(self: Any, *given: Any) -> Any:
        calls.append((self, *given))
        return real(self, *given)

    monkeypatch.setattr(owner, name, spy)
    return calls


def waiting(url: str) -> int:
    """How many requests wait in a page's queue."""
    return httpx.get(f"{url.rstrip('/')}/gradio_api/queue/status").json()["queue_size"]


def ran(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program of its own, run to its end."""
    options = {"capture_output": True, "encoding": "utf-8", "timeout": 300} | options
    return subprocess.run(list(map(str, command)), **{"check": False} | options)


@contextmanager
def program(*command: Any, port: int, log: Path, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A program that serves the page at a port, once it is ready; what it says goes to a file."""
    with log.open("wb") as told:
        running = subprocess.Popen(
            list(map(str, command)), stdout=told, stderr=subprocess.STDOUT, **options
        )

    def ready() -> bool:
        assert running.poll() is None, log.read_text(encoding="utf-8")[-3000:]
        address = f"http://127.0.0.1:{port}/healthz"
        with suppress(httpx.TransportError):
            return httpx.get(address, trust_env=False, timeout=5).status_code == 200
        return False

    try:
        wait_for(ready, "the page", 300)
        yield running
    finally:
        running.kill()
        running.wait()


def without_roots_rights() -> list[str]:
    """What stands before a command so that root's rights do not count."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root has all rights, and there is no setpriv to drop them")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


def command(module: Any, *words: object) -> None:
    """Run a module's command line."""
    with patch("sys.argv", [module.__name__, *map(str, words)]):
        module.main()


def log_of(run: Path) -> list[dict[str, float]]:
    return list(map(json.loads, (run / "log.jsonl").read_text(encoding="utf-8").splitlines()))


def page_of(folder: Path, event: Any) -> tuple[Service, Widgets, Any]:
    """A page's service, its widgets, and its first event that calls a function."""
    from lantern_demo.ui.page import build

    page = build(folder, "cpu")
    found = next(fn for fn in page.fns.values() if getattr(fn.fn, "func", None) is event)
    return page.lantern_service, found.fn.args[1], found  # type: ignore[union-attr]
