"""What a Space sets, and how the Hub's proxy asks. It can be read before `spaces` is imported."""

import socket

NAME = "someone/images-drawn-faster"
HOST = "someone-images-drawn-faster.hf.space"
PROXY = {
    "Host": HOST,
    "Origin": f"https://{HOST}",
    "X-Forwarded-For": "203.0.113.7",
    "X-Forwarded-Host": HOST,
    "X-Forwarded-Proto": "https",
}


def variables(port: int) -> dict[str, str]:
    return {
        "SYSTEM": "spaces",
        "SPACE_ID": NAME,
        "SPACE_HOST": HOST,
        "SPACE_AUTHOR_NAME": "someone",
        "SPACE_REPO_NAME": "images-drawn-faster",
        "SPACE_TITLE": "LANTERN",
        "GRADIO_SERVER_NAME": "0.0.0.0",
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_SSR_MODE": "True",
    }


def free_port() -> int:
    """A port to stand for a Space's 7860, which other tests may take while the program starts."""
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])
