"""Soak test: API clients and pages load one server for minutes.

Every answer is compared with that of the same request alone.

    python examples/soak.py --minutes 10 --clients 20 --pages 5 --out soak.json

Some clients behave badly: they cancel, disconnect in the middle, send nonsense, or fifty requests
at once. The test fails if an accepted request ends with a wrong answer, a refusal has no reason,
or the server does not exit cleanly. It samples the server's memory, threads, open files and
temporary files every few seconds. It writes the figures to `--out`. Pages need playwright and a
Chromium, as the tests of the page do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import httpx

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 1200  # seconds that a request may wait and run, with a full queue on a shared machine
FULL = "Queue is full"  # the beginning of that refusal
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-dev-shm-usage"]

# The requests. Their trees are named (see `join`), so that no answer depends on measured trees.
CASES: list[dict[str, Any]] = [
    {"prompt": "three red round lanterns over a lake at dusk", "methods": ["vanilla"], "seed": 1},
    {"prompt": "two blue box lanterns at dawn", "methods": ["eagle1", "lantern++"], "seed": 2},
    {"prompt": "a golden sky lantern at night", "methods": ["eagle2"], "seed": 3, "temperature": 0},
    {"prompt": "four purple lanterns over a plain", "methods": ["lantern"], "seed": 4, "top_k": 50},
    {
        "prompt": "two foxes in the hills at dawn",
        "methods": ["lantern++"],
        "seed": 5,
        "cfg_scale": 3.0,
    },
]
PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")  # browsers


def chromium() -> str | None:
    """Return the path of a browser: that of $CHROMIUM, or the first of PROGRAMS."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)


# What a page draws, by API and as a link. A shorter prompt would be completed on the page.
PAGE_CASE = {
    "prompt": "three red round lanterns over a lake at dusk",
    "methods": ["vanilla", "eagle1"],
    "seed": 7,
}
PAGE_LINK = urlencode(PAGE_CASE | {"methods": "vanilla,eagle1", "tree": "small"})


@dataclass
class Tally:
    """Counts of outcomes over all clients."""

    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    by_client: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str, client: str = "", seconds: float | None = None) -> None:
        with self.lock:
            self.done[what] += 1
            if seconds is not None:
                self.seconds.append(seconds)
                self.by_client[client] += 1

    def fault(self, what: str) -> None:
        with self.lock:
            self.faults.append(what)


@contextmanager
def served(model: str, place: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the program in a subprocess with all temporary files in `place`, and yield its address
    and process.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (place / "tmp").mkdir()
    env = os.environ | {
        "GRADIO_ANALYTICS_ENABLED": "False",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(place / "tmp"),
        "LANTERN_CACHE": str(place / "cache"),
    }
    env.pop("GRADIO_TEMP_DIR", None)
    options = ["--model", model, "--device", "cpu", "--port", str(port)]
    command = [sys.executable, str(ROOT / "app.py"), *options]
    with (place / "log.txt").open("wb") as log:
        # A script's background commands ignore Ctrl-C, and so would their child processes.
        attend = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, preexec_fn=attend
        )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], seconds: float = 300) -> None:
    """Wait for the server. Raises RuntimeError if it does not start."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{url}/healthz", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the server did not come up")


# -- clients


def join(url: str, body: dict[str, Any]) -> httpx.Response:
    """Request by plain HTTP."""
    return httpx.post(
        f"{url}/gradio_api/call/v2/compare", json=body | {"tree": "small"}, timeout=PATIENCE
    )


def answer(url: str, event_id: str, leave_after: int | None = None) -> Any:
    """Return the data of a call's last event, or None if the client left after `leave_after`
    events.
    """
    event, data, count = "", "", 0
    with httpx.stream(
        "GET", f"{url}/gradio_api/call/compare/{event_id}", timeout=PATIENCE
    ) as stream:
        for line in stream.iter_lines():
            if line.startswith("event: "):
                event, count = line[7:], count + 1
                if leave_after is not None and count > leave_after:
                    return None
            elif line.startswith("data: "):
                data = line[6:]
    found = json.loads(data)
    if event != "complete":
        raise RuntimeError(f"it ended with {event}: {found}")
    return found


def tokens_of(record: dict[str, Any]) -> dict[str, list[int]]:
    return {method: entry["token_ids"] for method, entry in record["methods"].items()}


def alone(url: str) -> list[dict[str, list[int]]]:
    """Return the right answer of every case, requested on an idle server."""
    found = []
    for case in CASES:
        response = join(url, case)
        found.append(tokens_of(answer(url, response.raise_for_status().json()["event_id"])[1]))
    return found


def refused(response: httpx.Response, tally: Tally) -> bool:
    """Count a refusal, and return whether the response was one."""
    if response.status_code == 200:
        return False
    sentence = str(response.json().get("detail"))
    if response.status_code == 503 and sentence.startswith(FULL):
        tally.add("refused: queue full")
    else:
        tally.fault(f"refused without a reason: {response.status_code} {sentence[:200]}")
    return True


def api_client(
    url: str, number: int, right: list[dict[str, list[int]]], until: float, tally: Tally
) -> None:
    """Send requests until the end. Every fifth client misbehaves in between."""
    dice = random.Random(number)
    while time.monotonic() < until:
        case, start = dice.randrange(len(CASES)), time.monotonic()
        try:
            if number % 5 == 0:
                misbehave(url, dice, tally)
            response = join(url, CASES[case])
            if refused(response, tally):
                time.sleep(dice.uniform(0.5, 3))
                continue
            _, record = answer(url, response.json()["event_id"])
            if tokens_of(record) == right[case]:
                tally.add("right", f"api {number}", time.monotonic() - start)
            else:
                tally.fault(f"client {number}: other tokens for case {case}")
        except Exception as error:
            tally.fault(f"client {number}, case {case}: {type(error).__name__}: {str(error)[:200]}")
            time.sleep(1)


def misbehave(url: str, dice: random.Random, tally: Tally) -> None:
    kind = dice.choice(["hang up", "cancel", "nonsense", "many"])
    if kind == "nonsense":
        response = join(url, {"prompt": "\x00" * dice.randrange(9), "seed": -1})
        if not refused(response, tally):
            try:
                answer(url, response.json()["event_id"])
                tally.fault("nonsense was drawn")
            except RuntimeError as error:
                if "prompt" not in str(error) and "seed" not in str(error):
                    tally.fault(f"nonsense was refused without its name: {error}")
        tally.add("nonsense")
        return
    responses = [join(url, CASES[0]) for _ in range(50 if kind == "many" else 1)]
    accepted = [
        response.json()["event_id"] for response in responses if not refused(response, tally)
    ]
    for event_id in accepted:
        if kind == "cancel":
            httpx.post(
                f"{url}/gradio_api/cancel",
                json={"session_hash": event_id, "fn_index": 0, "event_id": event_id},
                timeout=60,
            )
        else:  # leave after a few events; a stream without a reader would end only with its run
            answer(url, event_id, leave_after=2)
    tally.add(kind)


async def pages(
    url: str, count: int, right: list[dict[str, list[int]]], until: float, tally: Tally
) -> None:
    """Draw in browser pages, and sometimes close one in the middle of a run."""
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium(), args=FLAGS)
        await asyncio.gather(
            *(page_client(browser, url, number, right, until, tally) for number in range(count))
        )
        await browser.close()


async def page_client(
    browser: Any,
    url: str,
    number: int,
    right: list[dict[str, list[int]]],
    until: float,
    tally: Tally,
) -> None:
    dice = random.Random(1000 + number)
    while time.monotonic() < until:
        page = await browser.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        try:
            await page.goto(f"{url}/?{PAGE_LINK}")
            await page.locator("#status", has_text="Filled in from the link").wait_for()
            start = time.monotonic()
            await page.get_by_role("button", name="Draw", exact=True).click()
            refusal = page.locator("#status", has_text="Nothing was started")
            await page.locator("#stop:enabled").or_(refusal).first.wait_for()
            if dice.random() < 0.2:
                await asyncio.sleep(dice.uniform(0, 3))
                tally.add("tab closed")
            else:
                await page.locator("#stop:disabled").wait_for(state="attached")
                if await refusal.count():
                    tally.add("refused: page")
                elif await hands_out(page, right[-1], number, tally):
                    tally.add("right", f"page {number}", time.monotonic() - start)
        except Exception as error:
            tally.fault(f"page {number}: {type(error).__name__}: {str(error)[:300]}")
        await page.close()


async def hands_out(page: Any, right: dict[str, list[int]], number: int, tally: Tally) -> bool:
    """Return whether the record that a page hands out has the right tokens."""
    alert = page.locator("#status [role=alert]")
    if await alert.count():
        tally.fault(f"page {number} said: {(await alert.inner_text())[:200]}")
        return False
    await page.get_by_role("tab", name="Share and reproduce").click()
    async with page.expect_download() as download:
        await page.locator("#record").click()
    record = json.loads(Path(await (await download.value).path()).read_text(encoding="utf-8"))
    if tokens_of(record) != right:
        tally.fault(f"page {number}: other tokens")
        return False
    return True


# -- the server's state and resources


def idle(url: str) -> bool:
    """Return whether nothing runs or waits."""
    running = httpx.get(f"{url}/healthz", timeout=60).json()["running"]
    waiting = httpx.get(f"{url}/gradio_api/queue/status", timeout=60).json()["queue_size"]
    return not running and not waiting


def usage(process: subprocess.Popen[bytes], place: Path, since: float) -> dict[str, float]:
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    files = [path for path in (place / "tmp").rglob("*") if path.is_file()]
    sizes = 0
    for path in files:
        with suppress(OSError):  # gone meanwhile
            sizes += path.stat().st_size
    return {
        "seconds": round(time.monotonic() - since, 1),
        "memory_mib": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "handles": len(list(Path(f"/proc/{process.pid}/fd").iterdir())),
        "files": len(files),
        "files_mib": sizes / 2**20,
    }


def soak(
    url: str,
    process: subprocess.Popen[bytes],
    place: Path,
    minutes: float,
    clients: int,
    page_count: int,
    every: float = 5,
) -> dict[str, Any]:
    """Run the soak against a server of `served` and return its figures."""
    tally = Tally()
    right = alone(url)
    if page_count:
        response = join(url, PAGE_CASE)
        right.append(tokens_of(answer(url, response.raise_for_status().json()["event_id"])[1]))
    start = time.monotonic()
    until = start + 60 * minutes
    threads = [
        threading.Thread(target=api_client, args=(url, n, right, until, tally), daemon=True)
        for n in range(clients)
    ]
    if page_count:
        threads.append(
            threading.Thread(
                target=lambda: asyncio.run(pages(url, page_count, right, until, tally)), daemon=True
            )
        )
    for thread in threads:
        thread.start()
    curve = []
    while any(thread.is_alive() for thread in threads) and time.monotonic() < until + PATIENCE:
        curve.append(usage(process, place, start))
        time.sleep(every)
    hung = sum(thread.is_alive() for thread in threads)
    # The server must notice clients that left, or the device stays busy.
    deadline = time.monotonic() + 60
    while not idle(url) and time.monotonic() < deadline:
        time.sleep(0.5)
    after = alone(url) == right[: len(CASES)]
    curve.append(usage(process, place, start))
    seconds = sorted(tally.seconds)
    return {
        "minutes": minutes,
        "api_clients": clients,
        "pages": page_count,
        "right": tally.done["right"],
        "counts": dict(tally.done),
        "faults": tally.faults,
        "hung_clients": hung,
        "right_by_client": dict(sorted(tally.by_client.items())),
        "seconds_median": seconds[len(seconds) // 2] if seconds else None,
        "seconds_longest": seconds[-1] if seconds else None,
        "idle_at_the_end": idle(url),
        "right_afterwards": after,
        "tracebacks_in_log": (place / "log.txt")
        .read_text(encoding="utf-8", errors="replace")
        .count("Traceback"),
        "curve": curve,
    }


def sound(found: dict[str, Any]) -> bool:
    """Return whether a soak shows no fault."""
    return bool(
        found["right"]
        and not found["faults"]
        and not found["hung_clients"]
        and found["idle_at_the_end"]
        and found["right_afterwards"]
        and found.get("exit_code", 0) == 0
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--clients", type=int, default=20, help="API clients (default: %(default)s)"
    )
    parser.add_argument(
        "--pages", type=int, default=5, help="pages in a browser (default: %(default)s)"
    )
    parser.add_argument(
        "--model", default="lantern-scenes", help="a model id or folder (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("soak.json"),
        help="where the figures go (default: %(default)s)",
    )
    args = parser.parse_args()
    args.out = args.out.expanduser()
    with (
        TemporaryDirectory(prefix="lantern-soak-") as folder,
        served(args.model, Path(folder)) as (url, process),
    ):
        wait_until_ready(url, process)
        found = soak(url, process, Path(folder), args.minutes, args.clients, args.pages)
        stopped = time.monotonic()
        process.send_signal(signal.SIGINT)
        found |= {"model": args.model, "exit_code": None}
        with suppress(subprocess.TimeoutExpired):
            found["exit_code"] = process.wait(60)
        found["seconds_to_end"] = round(time.monotonic() - stopped, 2)
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in found.items() if key != "curve"}, indent=1))
    for name in ("memory_mib", "threads", "handles", "files", "files_mib"):
        values = [point[name] for point in found["curve"]]
        quarters = [values[min(len(values) - 1, len(values) * i // 4)] for i in range(5)]
        print(
            f"{name}: {', '.join(f'{value:.0f}' for value in quarters)} at every quarter; most "
            f"{max(values):.0f}"
        )
    raise SystemExit(0 if sound(found) else 1)


if __name__ == "__main__":
    main()
