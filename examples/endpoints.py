"""Call every endpoint of a running demo once: python examples/endpoints.py [URL]"""

from __future__ import annotations

import sys

from gradio_client import Client

client = Client(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7860", verbose=False)

offer = client.predict(api_name="/models")
print("models:", ", ".join(model["id"] for model in offer["models"]))

picture, numbers = client.predict("two blue box lanterns at dawn", api_name="/draw")
print("draw:", picture, numbers["steps"], "steps")

pictures, record = client.predict(
    "two blue box lanterns at dawn", methods=["vanilla", "eagle1"], seed=7, api_name="/compare"
)
for method, run in record["methods"].items():
    print("compare:", method, pictures[method], f"{run['speedup']:.2f}x")
