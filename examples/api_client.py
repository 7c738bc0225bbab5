"""Ask a running demo for its model, compare the methods, save the pictures and print a table.

python examples/api_client.py --prompt "two blue box lanterns at dawn" --seed 7 --out pictures
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from gradio_client import Client

COLUMNS = "{:<10} {:>8} {:>9} {:>6} {:>11} {:>8} {:>8}"


def compare(client: Client, **parameters: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Run /compare, print its progress, and return picture files by method and the run record."""
    job = client.submit(api_name="/compare", **parameters)
    for _, part in job:
        if "progress" in part:
            told = [
                f"{method} {at['tokens']} tokens, {at['seconds']:.1f} s"
                for method, at in part["progress"].items()
            ]
            print("; ".join(told) or "getting ready", flush=True)
    return job.result()


def print_table(record: dict[str, Any]) -> None:
    head = ("method", "seconds", "tokens/s", "steps", "tokens/step", "speedup", "changed")
    print(COLUMNS.format(*head))
    for method, run in record["methods"].items():
        numbers = [f"{run['decode_seconds']:.3f}", f"{run['tokens_per_second']:.1f}", run["steps"]]
        numbers.append(f"{run['mean_accepted_length']:.2f}")
        # absent without a vanilla run
        numbers.append(f"{run['speedup']:.2f}x" if "speedup" in run else "n/a")
        numbers.append(f"{run['changed']:.4f}")
        print(COLUMNS.format(method, *numbers))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare decoding methods through the demo's API.")
    parser.add_argument(
        "url",
        nargs="?",
        default="http://127.0.0.1:7860",
        help="where the demo runs, or a Space such as owner/name",
    )
    parser.add_argument("--prompt", default="three red round lanterns over a lake at dusk")
    parser.add_argument("--seed", type=int, help="the random seed (default: the server's, 7)")
    parser.add_argument(
        "--methods",
        nargs="+",
        help="for example: vanilla eagle2 lantern++ (default: the five that the page begins with)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("pictures"), help="folder for the pictures and the record"
    )
    args = parser.parse_args()
    args.out = args.out.expanduser()

    client = Client(args.url, verbose=False)
    offer = client.predict(api_name="/model")
    print("Model:", offer["model"]["id"])
    pictures, record = compare(client, prompt=args.prompt, seed=args.seed, methods=args.methods)

    args.out.mkdir(parents=True, exist_ok=True)
    for method, path in pictures.items():
        shutil.copy(path, args.out / f"{method}.png")
    (args.out / "record.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print_table(record)
    for method, why in record.get("failed", {}).items():
        print(f"{method} failed: {why}")
    if record["unknown_words"]:
        print("The model does not know:", ", ".join(record["unknown_words"]))
    if record["warning"]:
        print(record["warning"])
    print(f"Pictures and record are in {args.out}/")


if __name__ == "__main__":
    main()
