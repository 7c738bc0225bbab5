"""The check that keeps large files out of the history, on repositories of a few commits."""

import os
import shutil
from pathlib import Path

import pytest
from test_package import ROOT
from tiny import ran

pytestmark = pytest.mark.skipif(
    not (shutil.which("bash") and shutil.which("git")), reason="needs bash and git"
)

LARGE = 1_000_001  # bytes


def git(*words: str) -> None:
    user = "-c", "user.name=A", "-c", "user.email=a@example.org"
    assert ran("git", *user, *words).returncode == 0


@pytest.fixture(autouse=True)
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one in `tmp_path`, with the settings of no user."""
    monkeypatch.chdir(tmp_path)
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    git("init", "--initial-branch", "work")


def commit(name: str, size: int) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(os.urandom(size))
    git("add", "--all")
    git("commit", "--message", "a file")


def check() -> tuple[int, str]:
    done = ran("bash", ROOT / ".ci" / "new_objects")
    assert not done.stderr
    return done.returncode, done.stdout


def test_a_large_file_is_refused_even_if_a_later_commit_deletes_it() -> None:
    commit("first", 10)
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    commit("runs/last one.pt", LARGE)
    git("rm", "runs/last one.pt")
    git("commit", "--message", "no file")
    code, told = check()
    assert code == 1 and f"runs/last one.pt: {LARGE} bytes" in told
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    commit("small", LARGE - 1)
    assert check() == (0, "")


def test_only_the_shipped_model_and_pictures_may_be_large() -> None:
    """Without the main branch the last commit counts."""
    for name, code in (
        ("readme", 1),
        ("lantern_demo/bundled/model/target.safetensors", 0),
        ("examples/race.webp", 0),
        ("examples/last.pt", 1),
        ("old/lantern_demo/bundled/target.safetensors", 1),
    ):
        commit(name, LARGE)
        assert check()[0] == code, name
