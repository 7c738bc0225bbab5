"""Runs through kernels draw what the modules draw, in Triton's interpreter."""

from dataclasses import replace
from typing import Any, NoReturn

import pytest
from small_models import TEXT, model_of, of_llamagen

from lantern_demo.kernels import layer


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        ("shallow", ("eagle1", "lantern", "sjd")),
        ("guided drafter with feature layers", ("lantern++",)),
    ],
)
def test_tokens_are_those_of_the_modules(
    model: str, methods: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers are all alike, and the interpreter is slow."""
    of = of_llamagen(replace(TEXT, layers=1)) if model == "shallow" else model_of(model)
    fused = of.joined
    monkeypatch.setenv("LANTERN_KERNELS", "0")
    joined = of.joined
    assert fused[0].fused and fused[1].fused and not joined[0].fused
    for method in methods:
        noise = "shared" if method == "eagle1" else "independent"
        kernels, modules = (
            of.run(one, method, (1.0, 20, 1.0), num_tokens=4, noise=noise)[-1]
            for one in (fused, joined)
        )
        assert fused[0].fused and kernels.runner_reason == ""
        assert kernels.tokens == modules.tokens
        assert kernels.accepted_lengths == modules.accepted_lengths


def test_an_error_of_a_kernel_refuses_all_and_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("no C compiler\nand more")

    monkeypatch.setattr(layer, "attend", broken)
    model = model_of("llamagen")
    target, drafter, ops, _ = joined = model.joined
    assert target.fused and drafter.fused and not ops.reason
    for starts in (2, 1):  # then none is tried
        *steps, faulty = model.run(joined, "eagle1")
        assert [step.index for step in steps].count(0) == starts
        assert faulty.runner_reason == "without kernels: RuntimeError: no C compiler"
        assert faulty.tokens == model.run(model.modules, "eagle1")[-1].tokens
        assert not target.fused and not drafter.fused
