"""Faults of the law and of the loop, planted one at a time in a copy of the program.

Each file of `planted` says what is wrong, in which file, and which test must notice it. Then it has
the right lines after `-`, and the wrong ones after `+`.
"""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from tiny import ran

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2


class Fault(NamedTuple):
    """A planted fault; right and wrong are whole lines of a file."""

    name: str
    file: str
    test: str
    right: str
    wrong: str


def fault_of(path: Path) -> Fault:
    _, file, test, *lines = path.read_text(encoding="utf-8").splitlines()
    right, wrong = ("".join(f"{line[1:]}\n" for line in lines if line[0] == sign) for sign in "-+")
    return Fault(path.stem, file.removeprefix("file: "), test.removeprefix("test: "), right, wrong)


FAULTS = [fault_of(path) for path in sorted((ROOT / "tests" / "planted").iterdir())]


def test_the_right_lines_of_each_fault_are_there_once() -> None:
    """Whoever changes such a line corrects its fault, too."""
    for name, file, _, right, wrong in FAULTS:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert right != wrong and text.count(f"\n{right}") == 1, name


def run(folder: Path, tests: list[str], fault: Fault | None = None) -> tuple[int, str]:
    """Run tests in a copy of the program with a fault -> pytest's exit status, and what it said."""
    for part in ("lantern_demo", "examples", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "bundled")  # no named test needs the model
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    if fault is not None:
        file = folder / fault.file
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(f"\n{fault.right}", f"\n{fault.wrong}"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-x", "-q", *tests]
    done = ran(*command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=None)
    shutil.rmtree(folder)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_each_planted_fault_fails_its_test(tmp_path: Path) -> None:
    """All of these tests pass without a fault."""
    tests = sorted({fault.test for fault in FAULTS})
    with ThreadPoolExecutor(PROCESSES) as pool:
        sound = pool.submit(run, tmp_path / "sound", tests)
        found = [pool.submit(run, tmp_path / fault.name, [fault.test], fault) for fault in FAULTS]
    status, said = sound.result()
    assert status == 0, said
    other = [
        f"{fault.name}: {done.result()[1]}"
        for fault, done in zip(FAULTS, found, strict=True)
        if done.result()[0] != pytest.ExitCode.TESTS_FAILED
    ]
    assert not other, "\n".join(other)
