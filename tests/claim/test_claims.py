"""Claims: what is shipped, the words for planted data, tables that do not fit a design, the page."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
import yaml

from atrium.assemble.reproducing import page
from atrium.base.errors import ConfigError
from atrium.claim.computations import COMPUTATIONS
from atrium.claim.definition import SCALES, Computation
from atrium.claim.evidence import design, evidence_of_runs
from atrium.claim.files import claims_of, papers, read_claim, sweep_of
from atrium.claim.judgement import Evidence, judge, judge_error
from atrium.claim.table import COLUMNS, read_table
from atrium.cli.app import main
from atrium.config.files import conf_folder
from atrium.runs.curve_outcomes import Fall
from atrium.stats.estimates import Interval
from atrium.sweep.files import find_definition, read_definition, shipped_names

SEEDS, NUM_PROBLEMS, NUM_SAMPLES = (0, 1, 2, 3, 4), 40, 2
BASE = ["debug=tiny_steps", f"evaluation.num_samples={NUM_SAMPLES}", "tracking.figures=false", "num_steps=2"]


@pytest.fixture
def plant(tmp_path):
    """Writes a claim with its sweep, changed as asked; the claim's file."""

    def write(*, expected, deviation=0.05, base=BASE, seeds=SEEDS, outcome=None, scale="paper"):
        sweep = {
            "question": "Planted?",
            "base": [*base, "tracking=none", "optimizer.num_epochs=2"],
            "arms": {"old": {"algorithm": "grpo"}, "new": {"algorithm": "clip_higher"}},
            "seeds": list(seeds),
            "sampler": {"kind": "grid"},
            "trials": 2,
            "runs_dir": str(tmp_path / "runs"),
            "pruner": {"collapse_steps": None},
        }
        (tmp_path / "planted_sweep.yaml").write_text(yaml.safe_dump(sweep))
        claim = {
            "arxiv": "2602.05494",
            "place": "nowhere",
            "statement": "new beats old",
            "candidate": "new",
            "baseline": "old",
            "outcome": outcome or {"kind": "score", "measure": "mean", "k": NUM_SAMPLES},
            "expected": {"source": "planted", **expected},
            "designs": {
                scale: {
                    "sweep": str(tmp_path / "planted_sweep.yaml"),
                    "effect": 0.2,
                    "deviation": deviation,
                    "source": "planted",
                }
            },
        }
        path = tmp_path / "planted.yaml"
        path.write_text(yaml.safe_dump(claim))
        return path

    return write


def answers(*, gain):
    """Rows of both arms: `new` is right that much more often than `old`, which is right half of the time."""
    generator = np.random.default_rng(0)
    return [
        [f"{method}-{seed}", method, seed, f"p{problem}", sample, int(generator.random() < rate)]
        for method, rate in (("old", 0.5), ("new", 0.5 + gain))
        for seed in SEEDS
        for problem in range(NUM_PROBLEMS)
        for sample in range(NUM_SAMPLES)
    ]


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return path


@pytest.mark.parametrize(
    ("expected", "deviation", "word", "why"),
    [
        ({"sign": "positive", "size": 0.3}, 0.05, "shown", "difference"),
        ({"sign": "negative"}, 0.05, "contradicted", "difference"),
        ({"sign": "positive", "size": 0.8}, 0.05, "contradicted", "excludes the claimed 80 points"),
        ({"sign": "positive"}, 1.0, "not distinguishable", "not tested"),
        ({"sign": "positive"}, None, "not distinguishable", "not tested"),
    ],
    ids=["right", "wrong sign", "wrong size", "too little power", "unknown power"],
)
def test_each_planted_claim_gets_its_word(plant, tmp_path, capsys, expected, deviation, word, why):
    path = plant(expected=expected, deviation=deviation)
    table = write_csv(tmp_path / "table.csv", answers(gain=0.3))
    assert main(["claim", "check", str(path), str(table)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(f"scale=paper: {word}")
    assert why in said[1]


def test_a_missing_file_of_a_claims_data_is_named(plant, tmp_path, capsys):
    claim = str(plant(expected={"sign": "positive"}))
    table = write_csv(tmp_path / "a.csv", answers(gain=0.3))
    assert main(["claim", "check", claim, str(table), "typo.csv"]) == 2
    assert capsys.readouterr().err == "error: typo.csv: there is no such file or folder; correct the path\n"


def test_an_analogue_never_shows_and_an_interval_around_0_says_what_it_excludes(plant):
    expected = read_claim(plant(expected={"sign": "positive"})).expected
    clear = Evidence(difference=0.1, difference_S=(0.1, 0.1), interval=Interval(0.05, 0.15), is_share=True)
    around = Evidence(
        difference=0.0, difference_S=(0.1, -0.1), interval=Interval(-0.021, 0.03), is_share=True
    )
    assert judge(expected, clear, scale="laptop", is_powered=True).word == "agrees"
    assert judge(expected, around, scale="day", is_powered=True).word == "cannot tell"
    judged = judge(expected, around, scale="paper", is_powered=True)
    assert judged.word == "not distinguishable"
    assert "differences larger than 3 points are ruled out" in judged.why
    assert judge(expected, None, scale="paper", is_powered=True).word == "not run"
    assert judge(None, clear, scale="paper", is_powered=True).word == "not read"


def test_a_computation_agrees_up_to_its_bound_and_without_one_was_not_read():
    claims = {claim.name: claim for claim in claims_of("atr")}
    expected = claims["theorem_4_1"].expected
    assert judge_error(expected, expected.at_most).word == "agrees"
    assert judge_error(expected, 2.0 * expected.at_most).word == "disagrees"
    assert judge_error(claims["theorem_5_1"].expected, 0.0).word == "not read"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda rows: rows[0].__setitem__(1, "other"),
            "unknown method other; the claim's arms are new and old",
        ),
        (lambda rows: rows[0].__setitem__(2, 7), "seed 7 is not in the design"),
        (
            lambda rows: rows[0].__setitem__(4, NUM_SAMPLES),
            f"sample must be a whole number from 0 to {NUM_SAMPLES - 1}, got {NUM_SAMPLES}",
        ),
        (lambda rows: rows[0].__setitem__(5, 3), "correct must be true, false, 1 or 0, got 3"),
        (lambda rows: rows[0].__setitem__(0, "again"), "must be one run, got"),
        (lambda rows: rows.append(rows[0]), "twice"),
        (lambda rows: rows.pop(), "samples of problem"),
        (lambda rows: rows.__delitem__(slice(0, NUM_PROBLEMS * NUM_SAMPLES)), "no rows of old with seed 0"),
    ],
)
def test_rows_that_do_not_match_the_design_are_refused_in_one_line(tmp_path, change, said):
    rows = answers(gain=0.1)
    change(rows)
    table = write_csv(tmp_path / "table.csv", rows)
    with pytest.raises(ConfigError, match=re.escape(said)) as found:
        read_table([table], arms=("new", "old"), seeds=SEEDS, num_samples=NUM_SAMPLES)
    assert "\n" not in str(found.value)


def test_the_same_table_is_read_from_csv_jsonl_and_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    rows = answers(gain=0.1)
    records = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    pa_parquet.write_table(pa.Table.from_pylist(records), tmp_path / "t.parquet")
    paths = [write_csv(tmp_path / "t.csv", rows), tmp_path / "t.jsonl", tmp_path / "t.parquet"]
    found = [read_table([path], arms=("new", "old"), seeds=SEEDS, num_samples=NUM_SAMPLES) for path in paths]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("candidate: newer", "has no arm newer"),
        ("expected: {at_most: 0.1, source: x}", "set expected.sign for a claim about runs"),
        (
            "expected: {sign: negative, size: 0.1, source: x}",
            "size must be negative to match sign=negative, got 0.1",
        ),
        ("outcome: {kind: computation, name: x}", "cannot be set for a computation"),
        ("palce: there", "palce"),
    ],
)
def test_a_mistake_in_a_claim_file_is_one_line_that_names_it(plant, capsys, line, said):
    path = plant(expected={"sign": "positive"})
    content = yaml.safe_load(path.read_text()) | yaml.safe_load(line)
    path.write_text(yaml.safe_dump(content))
    assert main(["claim", "show", str(path)]) == 2
    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1


def test_the_seeds_of_designs_are_those_of_no_other_sweep_and_every_computation_is_there():
    claims = [claim for paper in papers() for claim in claims_of(paper)]
    designs = {
        sweep.name: set(sweep.seeds)
        for claim in claims
        for sweep in (sweep_of(claim, scale) for scale in SCALES if scale in claim.designs)
    }
    for name in shipped_names():
        sweep = read_definition(find_definition(name))
        used = {*sweep.seeds, *(sweep.final.seeds if sweep.final else ())}
        assert all(other == name or not used & seeds for other, seeds in designs.items()), name
    named = {claim.outcome.name for claim in claims if isinstance(claim.outcome, Computation)}
    assert named == set(COMPUTATIONS)


def test_a_day_of_a_paper_takes_at_most_24_hours_of_an_h100(capsys):
    assert main(["claim", "reproduce", "atr", "--scale", "day", "--plan"]) == 0
    said = capsys.readouterr().out
    assert float(re.search(r"the sweep: (\d+) GPU hours", said)[1]) <= 24
    assert "memory: it fits in 80.0 GB" in said


@pytest.mark.full
def test_the_scale_of_the_paper_is_composed_with_its_hours(capsys):
    assert main(["claim", "reproduce", "atr", "--scale", "paper", "--plan"]) == 0
    assert capsys.readouterr().out.count("GPU hours") == 2


def test_a_fall_is_measured_from_the_highest_mean_before_it():
    fall = Fall(kind="fall", metric="m", width=2, until=5)
    steps = np.arange(1.0, 6)
    assert fall.of_curve(steps, np.array([0.0, 2.0, 4.0, 2.0, 0.0])) == pytest.approx(2.0)
    assert fall.of_curve(steps, np.arange(5.0)) == 0.0
    assert fall.of_curve(steps[:4], np.zeros(4)) is None


def test_a_page_without_results_says_not_run(tmp_path):
    text = page(tmp_path)
    assert "| figure_2d | Figure 2d (Mean@8) |  | not run | not run | not run |" in text
    assert "| theorem_4_1 | Theorem 4.1 | not run |  |  |  |" in text


@pytest.mark.full
def test_a_paper_is_reproduced_and_the_second_time_nothing_runs_again(plant, tmp_path, monkeypatch):
    from atrium.assemble.reproducing import reproduce

    monkeypatch.chdir(tmp_path)
    curve = {"kind": "area", "metric": "rollout/reward", "until": 2}
    for outcome in ({"kind": "curve", "curve": curve}, None):
        claim = read_claim(
            plant(expected={"sign": "positive"}, seeds=(0, 1), outcome=outcome, scale="laptop")
        )
        assert reproduce([claim], "laptop", tmp_path / "docs", num_workers=1) == 0
        (stored,) = (tmp_path / "docs" / "reproductions").glob("*-laptop.json")
        found = json.loads(stored.read_text())["claims"]["planted"]
        assert found["word"] == "cannot tell"
        assert (tmp_path / "docs" / "reproductions" / found["figure"]).is_file()
        assert len(list((tmp_path / "runs" / "planted_sweep").iterdir())) == 4
    with pytest.raises(ConfigError, match="no finished run of new with seed 0"):
        evidence_of_runs(design(claim, "laptop"), {})


def test_the_page_of_the_docs_is_what_its_results_give():
    docs = conf_folder().parent / "docs"
    assert (docs / "reproductions.md").read_text(encoding="utf-8") == page(docs)


def test_a_page_says_how_many_of_its_claims_chance_would_decide(tmp_path):
    (tmp_path / "reproductions").mkdir()
    judged = {"word": "cannot tell", "why": "w"}
    names = ("figure_2a", "figure_2d", "abstract_stability", "figure_2b", "theorem_4_1")
    (tmp_path / "reproductions" / "atr-laptop.json").write_text(
        json.dumps({"about": {"commit": "c"}, "claims": dict.fromkeys(names, judged)})
    )
    assert "laptop: 3 claims with an expected sign" in page(tmp_path), (
        "not those that were not read, nor computations"
    )
    assert "expected to decide 0.15 of them" in page(tmp_path)
