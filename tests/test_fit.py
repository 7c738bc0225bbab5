"""Trees that fit: the chances counted in runs, the best tree for given costs, and the choice for a machine."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from tiny import write_tiny_model

from lantern_demo.bench.calibrate import rows_of
from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree, ZipAR
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.opt_tree import OptTree
from lantern_demo.decoding.window import Window
from lantern_demo.models.files import disk_cache
from lantern_demo.models.machine.matmul import KINDS
from lantern_demo.models.machine.tuning import Tuning
from lantern_demo.models.registry import BUNDLED, REGISTRY
from lantern_demo.runs import fitting
from lantern_demo.runs.fitting import CANDIDATES, FILE, PROBES, Calibration, Choice, StepCosts, TreeFitting
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.drafts import describe_drafts, drafts_of, settings_of
from lantern_demo.settings.settings import Settings

ACCEPT = [(0.5, 0.2, 0.1), (0.45, 0.2), (0.4, 0.1), (0.3,)]
LANDED = {"sjd": [(2, 1.3), (8, 2.0), (32, 2.5)]}


def test_the_best_tree_of_all_small_ones() -> None:
    """Against all trees of at most five nodes, by brute force."""

    def cost(nodes: int, depth: int, inner: int) -> float:
        return 2.0 + 0.11 * nodes + 0.2 * depth + 0.03 * inner

    paths = [
        p for d in (1, 2, 3) for p in itertools.product(range(3), repeat=d) if all(c < len(ACCEPT[i]) for i, c in enumerate(p))
    ]
    rates = []
    for count in range(1, 6):
        for chosen in itertools.combinations(paths, count):
            whole = all((len(p) == 1 or p[:-1] in chosen) and (p[-1] == 0 or (*p[:-1], p[-1] - 1) in chosen) for p in chosen)
            if whole:
                seconds = cost(1 + count, max(map(len, chosen)), len({p[:-1] for p in chosen}))
                rates.append((1 + sum(fitting.chances(ACCEPT, chosen))) / seconds)
    best = fitting.fit_static(ACCEPT[:3], cost, 5)
    assert (1 + sum(fitting.chances(ACCEPT, best))) / cost(*fitting.size_of(best)) == pytest.approx(max(rates))
    with pytest.raises(ValueError, match="no draft was ever accepted"):
        fitting.fit_static([[0.0, 0.0]], cost, 5)


def test_chances_are_counted_by_depth_and_draw() -> None:
    """A tree 0 -> 1, 2; 1 -> 3: three steps."""
    parents = [0, 0, 0, 1]
    steps = [Step(i, [1], 1, 1, 0.0, parents=parents, path=path) for i, path in enumerate(([0], [0, 1, 3], [0, 2]), start=1)]
    assert fitting.acceptance_by_rank(steps) == [[1 / 3, 1 / 3], [1.0]]
    assert fitting.acceptance_by_rank([Step(0, [1], 1, 1, 0.0)]) == []


def test_a_plane_finds_what_things_cost() -> None:
    def true(paths: tuple) -> float:
        return 3e-3 + 2e-4 * (1 + len(paths)) + 5e-4 * max(map(len, paths))

    cost = fitting.plane({paths: true(paths) for paths in PROBES})
    assert cost(20, 3, 7) == pytest.approx(3e-3 + 4e-3 + 1.5e-3, rel=1e-6)
    falling = fitting.plane({paths: 1e-2 - 1e-4 * len(paths) for paths in PROBES})
    assert falling(40, 4, 10) > 0


def test_the_choice_follows_the_machine() -> None:
    calibration = Calibration({"lantern++": ACCEPT}, {"lantern": [(1, 1, 3, 1.4), (4, 2, 8, 2.0)]}, LANDED)
    both = [(StaticTree, None, None), (DynamicTree, DynamicTree(1, 1, 3), DynamicTree(4, 2, 8)), (Window, Window(2), Window(32))]
    for kind, small, large in both:
        rows = calibration.rows(kind)
        dear = fitting.choose(kind, rows, lambda policies: [1e-3 * policy.nodes for policy in policies])
        cheap = fitting.choose(kind, rows, lambda policies: [1e-3] * len(policies))
        assert dear.policy.nodes < cheap.policy.nodes
        assert small in (None, dear.policy) and large in (None, cheap.policy)
        assert cheap.reason.startswith(f"fitted: {describe_drafts(cheap.policy)}; expected ")
        assert cheap.reason.endswith(f"tokens a step of 1.0 ms with {METHODS[CANDIDATES[kind].counted].label}")
    dearer = fitting.choose(Window, calibration.rows(Window), lambda windows: [20e-3 + 1e-3 * one.nodes for one in windows])
    assert dearer.policy == Window(8)
    assert calibration.rows(DraftConfig) == calibration.rows(OptTree) == (), "nothing to choose from"


def test_one_table_of_candidates() -> None:
    """Of every kind of drafts of the table of methods, by the relaxed method of a pair; no dynamic tree is a single guess."""
    assert set(CANDIDATES) == {method.drafts for method in METHODS.values()} - {DraftConfig}
    for kind, told in CANDIDATES.items():
        sharing = [method for method in METHODS.values() if method.drafts is kind]
        assert told.counted in [method.id for method in sharing if not method.lossless] or len(sharing) == 1
    for top_k, depth, nodes in CANDIDATES[DynamicTree].values:
        tree = DynamicTree(top_k, depth, nodes)
        assert depth >= 1 and nodes > 1 + top_k, f"{tree} may have one level"
        assert drafts_of(DynamicTree, Settings(**settings_of(tree))) == tree


def test_calibrations_are_read_strictly(tmp_path: Path) -> None:
    assert fitting.read_calibration(None) is None and fitting.read_calibration(tmp_path) is None
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps({"static": {"eagle1": [[0.5]]}, "dynamic": {"eagle2": [[1, 0, 2, 1.4]]}}), encoding="utf-8")
    assert fitting.read_calibration(tmp_path) == Calibration({"eagle1": [(0.5,)]}, {"eagle2": [(1, 0, 2, 1.4)]})
    file.write_text(json.dumps({"static": {}, "dynamic": {}, "windows": {"sjd": [[2, 1.3]]}}), encoding="utf-8")
    assert fitting.read_calibration(tmp_path) == Calibration({}, {}, {"sjd": [(2, 1.3)]})
    empty: dict[str, Any] = {"static": {}, "dynamic": {}}
    damages = [[], empty | {"static": {"eagle1": [["x"]]}}, empty | {"windows": [2]}, empty | {"windows": {"sjd": [2]}}]
    for damaged in ("{", *map(json.dumps, damages)):
        file.write_text(damaged, encoding="utf-8")
        with pytest.raises(ValueError, match=r"calibration.json is not a calibration"):
            fitting.read_calibration(tmp_path)


def test_choices_are_kept(tmp_path: Path) -> None:
    for policy in (StaticTree(PROBES[3]), DynamicTree(3, 2, 8), Window(12), ZipAR(4), OptTree(0.03)):
        fitting.remember(tmp_path / "new" / "a.json", Choice(policy, "because"))
        assert fitting.recall(tmp_path / "new" / "a.json", type(policy)) == Choice(policy, "because")
    assert fitting.recall(tmp_path / "none.json", StaticTree) is None
    for bad in (
        '{"reason": "x", "settings": {"tree": "00"}}',
        '{"reason": "x", "paths": [[0]]}',
        '{"settings": {"tree": "0"}}',
        "[]",
    ):
        (tmp_path / "bad.json").write_text(bad, encoding="utf-8")
        assert fitting.recall(tmp_path / "bad.json", StaticTree) is None
    (tmp_path / "file").write_text("", encoding="utf-8")
    fitting.remember(tmp_path / "file" / "a.json", Choice(policy, "because"))  # a folder that cannot be made


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A model with a calibration, and a cache of its own."""
    monkeypatch.setenv("LANTERN_CACHE", str(tmp_path / "cache"))
    folder = write_tiny_model(tmp_path / "tiny")
    told = {"static": {"lantern++": ACCEPT}, "dynamic": {"lantern": [[1, 1, 3, 1.3], [2, 1, 4, 1.6]]}, "windows": LANDED}
    (folder / FILE).write_text(json.dumps(told), encoding="utf-8")
    return load(folder, "cpu")


def test_a_relaxed_method_and_its_control_draft_the_same_tree(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is asked for first, and alone; by the relaxed one's counts, and measured once."""
    monkeypatch.setattr(StepCosts, "__call__", lambda self, policies: [1e-3 * (9 + policy.nodes) for policy in policies])
    trees: dict[str, Any] = {}
    for name in ("eagle1", "lantern", "lantern++", "eagle2"):
        entry = pipe.generate("two red lanterns", name, seed=3, lanternpp_k=5, lantern_k=5).record["methods"][name]
        trees[name] = entry["tree_settings"], entry["tree"]
    assert trees["eagle1"] == trees["lantern++"] and trees["eagle2"] == trees["lantern"]
    assert trees["eagle1"][1].startswith("fitted: static ") and trees["eagle1"][1].endswith(" with LANTERN++")
    assert trees["eagle2"][0]["draft_nodes"] == 4
    kind, drafter_kind = pipe._trees.tuning.products.split()
    assert pipe.products.startswith(KINDS[kind]) and drafter_kind in KINDS
    assert pipe.generate("two red lanterns", "opt-tree", seed=3).stats.tree == "small: this model has no calibration"
    assert pipe.generate("two red lanterns", "vanilla").stats.tree == "no tree"
    assert pipe.generate("two red lanterns", "eagle2", draft_nodes=5).stats.nodes == 5
    asked = pipe.generate("two red lanterns", "eagle1", tree="paper").stats
    assert (asked.tree, asked.nodes) == ("paper: as asked", 58)

    monkeypatch.setattr("lantern_demo.runs.fitting.choose", None)  # nothing is chosen again
    again = load(pipe.info.folder or "", "cpu").generate("two red lanterns", "eagle1", seed=3).stats
    assert (again.tree_settings, again.tree) == trees["eagle1"]


def test_a_model_with_a_calibration_fits_its_windows(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DraftConfig] = []

    def flat(self: StepCosts, policies: list[DraftConfig]) -> list[float]:
        asked.extend(policies)
        return [1e-3] * len(policies)

    monkeypatch.setattr(StepCosts, "__call__", flat)
    first = pipe.generate("two red lanterns", "sjd", seed=3)
    told = "fitted: window of 32; expected 2.50 tokens a step of 1.0 ms with SJD"
    entry = first.record["methods"]["sjd"]
    assert (entry["nodes"], entry["tree"], entry["tree_settings"]) == (32, told, {"window": 32})
    assert first.record["settings"]["window"] == 0 and len(asked) == 3
    assert pipe.generate("two red lanterns", "sjd", seed=3, **entry["tree_settings"]).tokens == first.tokens

    named = pipe.generate("two red lanterns", "sjd", seed=3, window=3).stats
    assert (named.nodes, named.tree) == (3, "window of 3: as asked")
    same = pipe.generate("two red lanterns", "sjd", seed=3, window=32).stats
    assert same.tree == "window of 32: as asked", "as asked, though it is what was fitted, too"
    assert pipe.generate("two red lanterns", "sjd", seed=3).stats.tree == told


def test_what_the_bundled_model_has_counted() -> None:
    """Each candidate; what is larger gives more tokens. A chance says how small a guess's may be, so that less is larger."""
    calibration = fitting.read_calibration(BUNDLED / "lantern-scenes")
    assert calibration is not None and len(calibration.rows(StaticTree)) == 5
    for kind in (DynamicTree, Window, OptTree):
        values = CANDIDATES[kind].values
        rows = calibration.rows(kind)
        assert tuple(row[:-1] for row in rows) == values and min(row[-1] for row in rows) > 1
        assert kind is DynamicTree or [row[-1] for row in rows] == sorted((row[-1] for row in rows), reverse=kind is OptTree)
    windows, tokens, changed = zip(*calibration.rows(ZipAR), strict=True)
    assert windows == (*(lead for (lead,) in CANDIDATES[ZipAR].values if lead < 16), 16)
    assert list(tokens) == sorted(tokens, reverse=True) and changed[-1] == 0 and changed[0] == max(changed)
    assert tokens == tuple(pytest.approx(255 / (15 + 15 * window), abs=1e-3) for window in windows)
    assert calibration.rows(ZipAR, Settings().zipar_changed)[0][0] == 4
    told = json.loads((BUNDLED / "lantern-scenes" / FILE).read_text(encoding="utf-8"))
    preset = Settings(**REGISTRY["lantern-scenes"].preset)
    assert Settings(**told["settings"]).with_changes(seed=preset.seed) == preset, "counted at the preset"


def test_what_is_counted_is_what_is_read(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the command are rows of a calibration, one for each candidate."""
    monkeypatch.setitem(CANDIDATES, DynamicTree, fitting.Candidates("dynamic", "dynamic", "lantern", ((1, 1, 3), (4, 2, 8))))
    pipe.defaults = pipe.settings(lantern_k=5, lanternpp_k=5)
    told = {}
    for kind in (StaticTree, DynamicTree, ZipAR):
        name = CANDIDATES[kind].counted
        told[CANDIDATES[kind].table] = {name: rows_of(pipe, METHODS[name], ["a lantern"])}
    read = TypeAdapter(Calibration).validate_python(told)
    assert all(0 <= chance <= 1 for row in read.rows(StaticTree) for chance in row)
    assert [row[:3] for row in read.rows(DynamicTree)] == [(1, 1, 3), (4, 2, 8)]
    assert all(1 <= row[3] <= 1 + row[1] + 1 for row in read.rows(DynamicTree))
    assert [row[0] for row in read.rows(ZipAR)] == [2, 3, 4, 5, 6, 8] and read.rows(ZipAR, 0.0)[-1] == (8, 1.0, 0.0)


WAVES = Calibration({}, {}, {}, {"zipar": [(2, 5.0, 0.2), (3, 4.0, 0.15), (4, 3.0, 0.1), (8, 1.0, 0.0)]})


@pytest.mark.parametrize(
    ("most", "cost", "window"),
    [
        (1.0, lambda lead: 1.0, 2),
        (0.2, lambda lead: 1.0, 2),
        (0.19, lambda lead: 1.0, 3),
        (0.1, lambda lead: 1.0, 4),
        (0.0, lambda lead: 1.0, 8),
        (1.0, lambda lead: 1.0 / lead**2, 8),
        (0.15, lambda lead: {3: 2.0, 4: 1.0, 8: 1.0}[lead], 4),
    ],
)
def test_a_wavefront_follows_the_machine_and_what_it_may_change(most: float, cost: Callable[[int], float], window: int) -> None:
    measured: list[int] = []

    def seconds(policies: list[DraftConfig]) -> list[float]:
        measured.extend(policy.lead for policy in policies)
        return [cost(policy.lead) for policy in policies]

    assert fitting.choose(ZipAR, WAVES.rows(ZipAR, most), seconds).policy == ZipAR(window)
    changed = {lead: share for lead, _, share in WAVES.wavefronts["zipar"]}
    assert max(changed[lead] for lead in measured) <= most, "what changes more is not even measured"


def test_costs_are_measured_once_and_in_turn() -> None:
    small, large = StaticTree(PROBES[0]), StaticTree(PROBES[3])
    asked: list[DraftConfig] = []

    def times(policy: DraftConfig) -> list[float]:
        asked.append(policy)
        return [1.0 + policy.nodes, 1.1 + policy.nodes, 90.0, 1.05 + policy.nodes]

    costs = StepCosts(times, rounds=3)
    assert costs([small, large]) == [1.05 + small.nodes, 1.05 + large.nodes] == costs([small, large])
    assert asked == [small, large] * 3 and costs.steady

    restless = StepCosts(lambda policy: [1.0, 1.0, 2.0, 3.0], rounds=1)
    restless([small])
    assert not restless.steady


def test_a_choice_of_a_restless_moment_is_not_kept(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCosts, "steady", property(lambda self: False, lambda self, value: None), raising=False)
    assert pipe.generate("two red lanterns", "eagle1").stats.tree.startswith("fitted: ")
    assert not list((disk_cache.root() / "fitted").glob("*-static-*"))


def test_a_kept_kind_of_products_is_used_only_where_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANTERN_CACHE", str(tmp_path))
    tuning = Tuning("a model", torch.device("cpu"), "float32")
    exact = ("plain", "packed")
    assert tuning._kept_kind("products", (*exact, "half"), lambda: "half") == "half"
    assert tuning._kept_kind("products", exact, lambda: "plain") == "plain"
    assert tuning._kept_kind("products", exact, lambda: "packed") == "plain", "what is kept"
    disk_cache.put(tuning.file("products", exact), '"bfloat16"\n')
    assert tuning._kept_kind("products", exact, lambda: "plain") == "plain", "never one that rounds"


def test_a_tree_is_chosen_anew_where_other_products_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANTERN_CACHE", str(tmp_path))
    measured: list[str] = []
    for products in ("plain plain", "plain plain", "half bfloat16"):
        tuning = Tuning("a model", torch.device("cpu"), "float32")
        tuning.products = products

        def times(policy: DraftConfig, products: str = products) -> list[float]:
            measured.append(products)
            return [float(policy.nodes)]

        TreeFitting(tuning, Calibration({"lantern++": ACCEPT}), StepCosts(times, fitting.FIT_ROUNDS)).fitted(StaticTree, 1.0)
    assert len(set(measured)) == 2 and measured.count("plain plain") == measured.count("half bfloat16")


def test_a_step_without_drafts_is_no_measure_of_a_tree(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step of a run may have no tree, and is much cheaper for that."""
    seen: dict[int, list[float]] = {}

    def kept(self: StepCosts, policies: list[DraftConfig]) -> list[float]:
        for policy in policies:
            seen[policy.nodes] = self.times(policy)
        return [1.0 * policy.nodes for policy in policies]

    def events(*_: object, tree: DraftConfig, **__: object) -> list[Step]:
        whole = [0] * tree.nodes
        ends = [(1.0, []), (9.0, whole), (12.0, whole), (15.5, whole), (15.6, [0])]
        return [Step(i, [0], 1, 1 + i, seconds, tree_tokens=tokens) for i, (seconds, tokens) in enumerate(ends)]

    knobs = pipe.settings()
    monkeypatch.setattr(StepCosts, "__call__", kept)
    monkeypatch.setattr(Pipeline, "_decode", events)
    pipe.tree_of(METHODS["eagle1"], knobs)
    assert seen and all(times == [3.0, 3.5] for times in seen.values())


def test_nothing_is_measured_on_a_device_that_is_only_lent(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCosts, "__call__", None)
    pipe = load(pipe.info.folder, device="cpu", fit_trees=False)
    list(pipe.prepare())
    for method, tree in (("eagle1", "small"), ("sjd", "window of 8")):
        stats = pipe.generate("two red lanterns", method).stats
        assert (stats.tree, stats.nodes) == (f"{tree}: nothing is measured on a device that is only lent", 8)
