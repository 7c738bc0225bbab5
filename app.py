"""Serve the page and its API:

python app.py [--model ID] [--folder DIR] [--device D] [--threads N] [--port N] [--share]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback

from lantern_demo.shutdown import leave, stoppable
from lantern_demo.ui import environment


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Speculative decoding of images, side by side: a page and an API."
    )
    parser.add_argument(
        "--model",
        default=os.environ.get("LANTERN_MODEL") or "lantern-scenes",
        help="a model folder or an id of docs/models.md (default: $LANTERN_MODEL, lantern-scenes)",
    )
    parser.add_argument("--folder", help="a local folder with the files of a published --model")
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        help="threads of the CPU that compute (default: $LANTERN_THREADS, or what suits the model)",
    )
    parser.add_argument(
        "--port",
        type=int,
        help="port to listen on (default: $GRADIO_SERVER_PORT, or a free one from 7860)",
    )
    parser.add_argument(
        "--share",
        action="store_true",
        default=None,
        help="also open a public link through Gradio's servers",
    )
    args = parser.parse_args()

    try:
        with stoppable(0):
            port = environment.prepare(args.port)
            # Only now, since Gradio reads the environment while it is imported. On a Space `spaces`
            # must come before anything that touches CUDA.
            import spaces  # isort: skip  # noqa: F401

            from lantern_demo.ui.page import build, launch

            page = build(args.model, args.device, args.threads, args.folder)
            # The page opens immediately and shows that the model is still loading.
            launch(page, server_port=port, share=args.share, prevent_thread_lock=True)
            sys.stdout.flush()  # so that a log file has the address, too
            # Other threads serve. Between two naps Ctrl-C is heard on Windows, too.
            while page.lantern_service.state != "failed":
                time.sleep(1)
            page.lantern_service.wait()  # raises the reason
    except ModuleNotFoundError as error:
        leave(2, f"app.py: error: {error}; run pip install -r requirements.txt")
    except (ValueError, OSError) as error:
        leave(2, f"app.py: error: {error}")
    except Exception:
        leave(1, traceback.format_exc())


if __name__ == "__main__":
    main()
