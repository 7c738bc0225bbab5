"""A ZeroGPU Space without a GPU: `python tests/helpers/zero_gpu.py MODEL SCRATCH`.

It serves the page as such a Space would, and prints what became of it as one line of JSON. A
stand-in for the service that lends GPUs keeps what it was asked for, and says that the visitor's
time is used up. What `spaces` looks for in PyTorch, and a CPU build lacks, gets a stand-in, too.
"""

import asyncio
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import space

USED_UP = {"left": 0, "wait": "PT1H"}
ASKED: list[dict[str, Any]] = []  # what the service was asked for


class Lender(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        url = urlsplit(self.path)
        status, answer = 200, "null"
        if url.path == "/schedule":
            said = {name: values[0] for name, values in parse_qs(url.query).items()}
            visitor = said.get("token", "").partition(".")[0]
            ASKED.append({"visitor": visitor, "seconds": int(said["durationSeconds"])})
            status, answer = 429, json.dumps(USED_UP)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: Any) -> None:
        pass


def no_fork() -> bool:
    """Stands in for `torch.cuda._is_in_bad_fork`, which a child process could not name."""
    return False


def prepare(scratch: Path) -> None:
    """This process as one of a ZeroGPU Space; before PyTorch is used and `spaces` is imported."""
    lender = ThreadingHTTPServer(("127.0.0.1", 0), Lender)
    threading.Thread(target=lender.serve_forever, daemon=True).start()
    (scratch / "cgroup").write_text("0::/\n", encoding="utf-8")
    os.environ.update(
        space.variables(space.free_port()),
        SPACES_ZERO_GPU="true",
        SPACES_ZERO_DEVICE_API_URL=f"http://127.0.0.1:{lender.server_port}",
        ZEROGPU_OFFLOAD_DIR=str(scratch / "tensors"),
        ZEROGPU_PROC_SELF_CGROUP_PATH=str(scratch / "cgroup"),
        LANTERN_CACHE=str(scratch / "cache"),
        GRADIO_TEMP_DIR=str(scratch / "gradio"),
        NO_PROXY="127.0.0.1",
    )
    import torch

    if not hasattr(torch._C, "_cuda_init"):
        torch._C._cuda_init = lambda: None
    torch.cuda._is_in_bad_fork = no_fork
    torch.version.cuda = torch.version.cuda or "12.8"


def asks(url: str, visitor: str, **values: Any) -> str:
    """Ask for a comparison -> what it ended with."""
    from gradio_client import Client

    # as the Hub's proxy adds: of three parts, the second JSON
    token = {"X-IP-Token": f"{visitor}.e30.signature"}
    client = Client(url, headers=token, verbose=False)
    try:
        return str(client.predict(prompt="a lantern", api_name="/compare", **values))
    except Exception as error:
        return str(error)


def opens(page: Any) -> str:
    """What the events that fill the page answer to a visitor who comes."""
    events = {event.name: event.fn for event in page.fns.values()}

    async def told() -> list[str]:
        return [answer async for answer in events["arrive"]()]

    came = events["first"]("navigate", SimpleNamespace(query_params={}))
    return str([*asyncio.run(told()), came])


def main(model: Path, scratch: Path) -> dict[str, Any]:
    prepare(scratch)
    import spaces.zero.config

    from lantern_demo.ui.page import build, launch

    page = build(model)
    _, url, _ = launch(page, prevent_thread_lock=True, quiet=True)
    told = {
        "opened": opens(page),
        "state": page.lantern_service.state,
        "device": str(page.lantern_service.wait().device),
        "answers": [asks(url, "one"), asks(url, "two", methods=["vanilla"])],
        "asked": ASKED,
        "factor": spaces.zero.config.get_config()["duration_factor"],
    }
    page.close(verbose=False)
    return told


if __name__ == "__main__":
    outcome = main(Path(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps(outcome), flush=True)
    os._exit(0)
