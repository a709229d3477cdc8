"""Planned contrasts: predictions in a file, outcomes of curves, and both side by side."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml
from tests.sweep.conftest import ScriptedRuns, new_worker

from atrium.assemble.sweep_report import report
from atrium.assemble.sweep_workers import predictions_commit
from atrium.base.errors import ConfigError
from atrium.runs.run_folder import RunFolder
from atrium.sweep.files import read_definition
from atrium.sweep.setup import prepare
from atrium.sweep.storage import SweepStorage, storage_url

DEFINITION = {
    "question": "How fast?",
    "base": ["experiment=stress", "num_steps=4", "optimizer.num_warmup_steps=1"],
    "arms": {
        "clip": {"algorithm": "grpo"},
        "clip_again": {"algorithm": "grpo", "rollout.sampling_stream": 1},
        "wide": {"algorithm": "grpo", "divergence.delta": 0.5},
        "narrow": {"algorithm": "grpo", "divergence.delta": 0.05},
    },
    "seeds": [0, 1, 2, 3],
    "trials": 4,
    "outcomes": {
        "area": {"kind": "area", "metric": "rollout/reward", "until": 4},
        "half": {"kind": "steps_to", "metric": "rollout/reward", "value": 0.5, "until": 4},
        "worked": {"kind": "area", "metric": "rollout/worked_frac", "until": 4},
    },
    "predictions": "predicted.yaml",
}
WIDER = {"area": {"sign": "positive", "size": 0.1}, "half": {"sign": "negative"}}
CONTRASTS = [
    {"candidate": "wide", "baseline": "clip", "because": "wider", "predicted": WIDER},
    {"candidate": "narrow", "baseline": "clip", "because": "a slip of the pen", "predicted": WIDER},
    {"candidate": "clip_again", "baseline": "clip", "because": "other draws"},
]
RATES = {0.5: 0.2, 0.05: 0.1}


class CurvesOf(ScriptedRuns):
    """Scripted runs whose folders hold curves: faster with wider windows, noisy by seed and stream."""

    def __init__(self, runs_dir, num_steps=4):
        self._runs_dir, self._num_steps = runs_dir, num_steps
        super().__init__(lambda config: 0.5)

    def __call__(self, run, watch):
        result = super().__call__(run, watch)
        config = run.config
        rate = RATES.get(config.divergence.delta, 0.15) + 0.01 * (config.seed - 1.5)
        rate += 0.001 * (-1) ** config.seed * (config.rollout.sampling_stream + config.divergence.delta)
        path = RunFolder(self._runs_dir / result.run).metrics_file
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            {"step": step, "rollout/reward": rate * step, "rollout/worked_frac": rate * step}
            for step in range(1, self._num_steps + 1)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return result


@pytest.fixture
def study(tmp_path):
    """Write a sweep's file and its predictions."""

    def write(predicted=CONTRASTS, **changes):
        (tmp_path / "predicted.yaml").write_text(yaml.safe_dump({"contrasts": predicted}))
        (tmp_path / "small.yaml").write_text(yaml.safe_dump(DEFINITION | changes))
        return tmp_path / "small.yaml"

    return write


@pytest.fixture
def reported(study, tmp_path, capsys):
    """Run the sweep on scripted curves; what its report holds, and what it said."""

    def run(predicted_at=None, num_steps=4, **changes):
        runs_dir = tmp_path / "runs"
        definition = read_definition(study(**changes), runs_dir=str(runs_dir))
        storage = SweepStorage(storage_url("journal", runs_dir / "sweeps" / "small"))
        prepare(storage, definition, predicted_at=predicted_at)
        new_worker(storage, definition, CurvesOf(runs_dir, num_steps)).work()
        report(str(runs_dir), "small")
        folder = runs_dir / "sweeps" / "small" / "report"
        return json.loads((folder / "report.json").read_text()), capsys.readouterr().out, folder

    return run


def test_predictions_stand_beside_results_and_failed_ones_are_named(reported):
    content, said, folder = reported(predicted_at="c0ffee")
    rows = {(row["outcome"], row["name"]): row for row in content["contrasts"]["rows"]}
    kinds = {key: row["kind"] for key, row in rows.items()}
    assert kinds["area", "wide - clip"] == kinds["half", "wide - clip"] == "agrees"
    assert kinds["area", "narrow - clip"] == kinds["half", "narrow - clip"] == "contradicted"
    assert kinds["area", "clip_again - clip"] == "not_seen"
    assert rows["area", "wide - clip"]["difference"] == pytest.approx(0.125, abs=0.005)
    assert rows["half", "narrow - clip"]["difference_by_seed"][0] < 1.0, "restricted to the horizon"
    assert "area: of 2 predicted contrasts, 1 as predicted, 1 contradicted (narrow - clip)" in said
    assert "of 0 predicted" not in said, "nothing is predicted for the third outcome"
    assert "null contrasts: 0 of 3 intervals exclude 0; 0.2 are expected" in said
    assert "committed in c0ffee before the first run" in said
    assert "best on validation" not in said, "a control ranks nothing"
    assert not (folder / "winner.yaml").exists()


def test_a_report_draws_the_curves_of_its_outcomes_and_each_batch_beside_the_law_of_its_window(reported):
    content, _, folder = reported()
    arms = {arm["arm"]: arm for arm in content["contrasts"]["curves"]["rollout/worked_frac"]}
    clip, narrow = arms["clip"], arms["narrow"]
    assert clip["window"] == [0.8, 1.2]
    assert [mean[0] for mean in clip["means"]] == [1, 2, 3, 4]
    assert clip["means"][1][1] == pytest.approx(0.3)
    assert clip["means"][1][2] < 0.3 < clip["means"][1][3]
    values = {arm["arm"]: arm["value"] for arm in content["contrasts"]["arms"]}
    assert values["wide"] - values["clip"] == pytest.approx(0.125, abs=0.005)
    assert narrow["seeds"]["0"] == [[step, pytest.approx(0.08505 * step)] for step in (1, 2, 3, 4)]
    texts = {name: (folder / f"{name}.svg").read_text() for name in ("outcomes", "batches")}
    assert all(f"<!-- {arm} -->" in texts["outcomes"] for arm in ("clip", "clip_again", "wide", "narrow"))
    assert "<!-- narrow [0.95, 1.05] -->" in texts["batches"]


def test_figures_of_a_report_use_the_display_names_of_the_definition(reported):
    labels = {"narrow": "Narrow", "rollout/worked_frac": "share of worked answers", "outcomes": "All arms"}
    _, _, folder = reported(labels=labels)
    outcomes, batches = ((folder / f"{name}.svg").read_text() for name in ("outcomes", "batches"))
    assert all(f"<!-- {text} -->" in outcomes for text in ("Narrow", "share of worked answers", "clip"))
    assert "All arms" in outcomes
    assert "rollout/worked_frac" not in outcomes
    assert "<!-- Narrow [0.95, 1.05] -->" in batches


FAMILIES = {
    "x": "worked",
    "y": "area",
    "baseline": "one",
    "members": {"one": ["narrow", "clip", "wide"], "other": ["wide", "narrow"]},
}


def test_a_report_compares_families_where_they_are_equally_far(reported):
    content, said, folder = reported(families=FAMILIES)
    [row] = content["families"]["rows"]
    assert len(content["families"]["places"]) == 4, "three shares of the range, and their mean"
    assert [one["difference"] for one in row["differences"]] == pytest.approx([0.0] * 4, abs=1e-12)
    assert "area of other and one at equal worked" in said
    assert "<!-- other -->" in (folder / "families.svg").read_text()


@pytest.mark.full
def test_families_along_a_setting_are_compared_at_the_values_that_they_share(reported):
    members = {"ratio": ["narrow", "wide"], "other": ["other"]}
    arms = DEFINITION["arms"] | {"other": {"algorithm": "atr", "divergence.delta": 0.05}}
    families = FAMILIES | {"x": "divergence.delta", "baseline": "ratio", "members": members}
    found = reported(families=families, arms=arms, trials=5)[0]["families"]
    assert found["places"] == ["0.05", "on average"]


def test_families_whose_arms_lack_an_outcome_are_not_compared(reported):
    assert reported(families=FAMILIES, num_steps=3)[0]["families"] is None


@pytest.mark.full
def test_a_verdict_says_where_predictions_were_not_committed_before_the_first_run(reported):
    assert "were not committed before the first run" in reported()[1]


def test_contrasts_without_all_their_seeds_have_no_result(reported):
    content, said, _ = reported(num_steps=3)
    assert {row["kind"] for row in content["contrasts"]["rows"]} == {"missing"}
    assert "area: of 2 predicted contrasts, 2 without a result" in said


def test_what_was_committed_when_a_sweep_began_is_what_counts(study, tmp_path):
    definition = read_definition(study(), runs_dir=str(tmp_path / "runs"))
    storage = SweepStorage(storage_url("journal", tmp_path / "runs" / "sweeps" / "small"))
    for commit in (None, "written later"):
        prepare(storage, definition, predicted_at=commit)
    recorded = json.loads((tmp_path / "runs" / "sweeps" / "small" / "sweep.json").read_text())
    assert recorded["predictions_commit"] is None
    changed = read_definition(study(CONTRASTS[:1]), runs_dir=str(tmp_path / "runs"))
    with pytest.raises(ConfigError, match="contrasts must keep the value that sweep"):
        prepare(storage, changed)


def test_only_a_commit_of_the_very_predictions_counts(study, tmp_path):
    path = study()
    definition = read_definition(path)

    def git(*arguments):
        name = ("-c", "user.name=n", "-c", "user.email=e@x")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *name, *arguments], check=True, capture_output=True
        )
        return done.stdout.decode().strip()

    assert predictions_commit(str(path), definition) is None, "no repository"
    git("init", "-q")
    assert predictions_commit(str(path), definition) is None, "not added"
    git("add", ".")
    git("commit", "-qm", "Predict")
    assert predictions_commit(str(path), definition) == git("rev-parse", "HEAD")
    (tmp_path / "predicted.yaml").write_text("contrasts: []\n")
    assert predictions_commit(str(path), definition) is None, "changed since"


@pytest.mark.parametrize(
    ("contrasts", "changes", "said"),
    [
        ([CONTRASTS[0] | {"candidate": "wid"}], {}, "unknown arm wid; did you mean wide?"),
        ([CONTRASTS[0] | {"predicted": {"are": WIDER["area"]}}], {}, "unknown outcome are"),
        ([CONTRASTS[0] | {"predicted": {"area": {"sign": "up"}}}], {}, "sign"),
        (CONTRASTS, {"contrasts": CONTRASTS}, "contrasts must be in a separate file"),
        (CONTRASTS, {"predictions": "gone.yaml"}, "gone.yaml"),
        (CONTRASTS, {"outcomes": {"area": {"kind": "area", "metric": "m"}}}, "until"),
        (
            CONTRASTS,
            {"families": FAMILIES | {"y": "aera"}},
            "unknown outcome aera; did you mean area?",
        ),
        (CONTRASTS, {"families": FAMILIES | {"baseline": "on"}}, "unknown family on"),
        (
            CONTRASTS,
            {"families": FAMILIES | {"x": "divergence.delta"}},
            "a number in each arm, but it is not a number in clip",
        ),
    ],
)
def test_definitions_that_cannot_be_judged_are_refused(study, contrasts, changes, said):
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        read_definition(study(contrasts, **changes))
