"""Serve the page and its API: python app.py [--model ID] [--device D] [--threads N] [--port N] [--share]"""

from __future__ import annotations

import spaces  # isort: skip  # noqa: F401  # on a Space it must come before anything that touches CUDA

import argparse
import os
import time

from lantern_demo.models.machine.shutdown import stoppable
from lantern_demo.models.registry import REGISTRY
from lantern_demo.ui.page import build, launch, wait_for_model


def main() -> None:
    parser = argparse.ArgumentParser(description="Speculative decoding of images, side by side: a page and an API.")
    parser.add_argument(
        "--model",
        default=os.environ.get("LANTERN_MODEL") or "lantern-scenes",
        help=f"{', '.join(REGISTRY)}, or a model folder (default: $LANTERN_MODEL or lantern-scenes)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, help="threads of the CPU that compute (default: $LANTERN_THREADS, or what suits the model)"
    )
    parser.add_argument("--port", type=int, help="port to listen on (default: $GRADIO_SERVER_PORT, or a free one from 7860)")
    parser.add_argument("--share", action="store_true", default=None, help="also open a public link through Gradio's servers")
    args = parser.parse_args()

    try:
        with stoppable(0):
            page = build(args.model, args.device, args.threads)
            # The page opens immediately and shows that the model is still loading.
            launch(page, server_port=args.port, share=args.share, prevent_thread_lock=True)
            wait_for_model(page)
            while True:  # other threads serve
                time.sleep(3600)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
