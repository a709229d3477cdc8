"""The server over real folders: what it answers, what it survives, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState


@pytest.fixture
def client(address):
    with httpx.Client(base_url=address, timeout=60) as opened:
        opened.headers["origin"] = address
        page = opened.get("/").text
        opened.headers["x-atrium-token"] = page.partition('name="atrium-token" content="')[2].partition('"')[
            0
        ]
        yield opened


def ask(client, path, **parameters):
    response = client.get(f"/api/{path}", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def eventually(check):
    deadline = time.monotonic() + 30
    while not (found := check()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)
    return found


def names(client):
    return [run["name"] for run in ask(client, "runs")["runs"]]


def run_of(client, name):
    return next(run for run in ask(client, "runs")["runs"] if run["name"].endswith(name))


def indexed(client):
    """The names of all runs, once their curves are indexed; of one answer, as more runs may appear."""

    def whole():
        table = ask(client, "runs")
        is_whole = table["index"]["done"] == table["index"]["total"] == len(table["runs"])
        return [[run["name"] for run in table["runs"]]] if is_whole else None

    return eventually(whole)[0]


def test_the_table_tells_runs_apart_by_what_differs(client):
    table = ask(client, "runs")
    assert len(table["runs"]) == 4
    assert {"seed", "algorithm.name", "divergence.kind", "divergence.delta"} <= set(table["keys"])
    assert "model.kind" in table["shared"]
    run = table["runs"][0]
    assert run["state"] == "finished"
    assert run["step"] == run["num_steps"] == 8
    assert run["scores"]["sums"]["last"]["k"] == 4
    assert run["num_tokens"] == 800
    assert table["keys"].index("algorithm.name") == 0


def test_curves_are_grouped_by_method_with_a_band_over_seeds(client):
    runs = indexed(client)
    answer = ask(
        client, "curves", run=runs, metric=["rollout/reward", "evaluation/sums/mean_at_k", "no/such"]
    )
    reward, evaluation, unknown = answer["panels"]
    assert [one["num"] for one in reward["series"]] == [2, 2]
    assert reward["series"][0]["x"] == list(range(1, 9))
    assert all(
        low <= y <= high
        for low, y, high in zip(*(reward["series"][0][k] for k in ("low", "y", "high")), strict=True)
    )
    assert evaluation["series"][0]["x"] == [0, 8]
    assert evaluation["is_share"]
    assert unknown["series"] == []
    assert len(answer["groups"]) == 2


@pytest.mark.parametrize("axis", ["step", "tokens"])
def test_the_mean_of_evaluations_is_over_the_runs_that_were_evaluated_there(client, make_run, runs_dir, axis):
    make_run(runs_dir, "clip", 0, num_steps=4)
    make_run(runs_dir, "clip", 1, num_steps=8)
    runs = [
        name for name in eventually(lambda: len(indexed(client)) == 6 and names(client)) if "clip" in name
    ]
    shown = {"run": runs, "metric": "evaluation/sums/mean_at_k", "x": axis, "group": "algorithm.name"}
    (together,) = ask(client, "curves", **shown)["panels"][0]["series"]
    alone = ask(client, "curves", **{**shown, "group": "run"})["panels"][0]["series"]
    (short,) = [one for one in alone if one["x"][-1] == (4 if axis == "step" else 400)]
    (long,) = [one for one in alone if one is not short]
    assert together["x"] == [0, short["x"][-1], long["x"][-1]]
    assert together["num"] == [2, 1, 1]
    assert together["y"][1:] == [short["y"][-1], long["y"][-1]]


def test_answers_are_compressed_and_event_streams_are_not(client):
    answer = client.get("/api/runs")
    assert answer.headers["content-encoding"] == "gzip"
    with client.stream("GET", "/api/events") as events:
        assert "content-encoding" not in events.headers
        assert next(events.iter_lines()).startswith("data: ")


def test_curves_follow_the_axis_the_group_and_the_smoothing(client):
    runs = indexed(client)
    shown = {"run": runs, "metric": "rollout/reward"}
    by_tokens = ask(client, "curves", **shown, x="tokens", group="run")["panels"][0]["series"]
    assert len(by_tokens) == 4
    assert by_tokens[0]["x"] == [100.0 * step for step in range(1, 9)]
    by_time = ask(client, "curves", **shown, x="wall_clock", group="seed")["panels"][0]["series"]
    assert [one["label"] for one in by_time] == ["seed 0", "seed 1"]
    assert by_time[0]["x"][-1] == 16.0
    rough = ask(client, "curves", **shown, group="run")["panels"][0]["series"][0]
    smooth = ask(client, "curves", **shown, smooth=99, group="run")["panels"][0]["series"][0]
    assert "raw" not in rough
    assert smooth["raw"] == rough["y"]
    assert smooth["y"] != rough["y"]
    assert smooth["y"][-1] - smooth["y"][0] > 0.5, "a window longer than the run leaves its course"


def test_curves_of_a_panel_have_points_at_the_same_steps_and_more_of_them_in_a_zoom(
    client, make_run, runs_dir
):
    for seed, num_steps in enumerate((300, 260)):
        make_run(runs_dir, "atr", seed, experiment="long", num_steps=num_steps)
    eventually(lambda: len(indexed(client)) == 6)
    shown = {"exp": "long", "metric": "rollout/reward", "group": "run", "points": 20}
    answer = ask(client, "curves", **shown)
    longer, shorter = sorted(answer["panels"][0]["series"], key=lambda one: -one["x"][-1])
    assert longer["x"][: len(shorter["x"])] == shorter["x"]
    assert (longer["x"][0], longer["x"][-1]) == (1, 300)
    assert len(longer["x"]) <= 22
    assert answer["smoothing"] == 7
    assert len(longer["raw"]) == len(longer["y"])
    zoomed = ask(client, "curves", **shown, zoom="101_120")["panels"][0]["series"][0]["x"]
    assert set(range(101, 121)) <= set(zoomed)


def test_a_metric_on_the_x_axis_gives_a_point_per_step(client):
    shown = {"exp": "study", "metric": ["rollout/reward", "evaluation/sums/mean_at_k"]}
    reward, score = ask(client, "curves", **shown, x="objective/entropy")["panels"]
    assert [len(one["x"]) for one in reward["series"]] == [16, 16]
    assert sorted(set(reward["series"][0]["x"]))[-1] == 1.0
    assert [len(one["y"]) for one in score["series"]] == [2, 2], "the last step of two runs was evaluated"
    for points, kept in ((0, 16), (3, 6)):
        panel = ask(client, "curves", **shown, x="objective/entropy", points=points)["panels"][0]
        assert [len(one["x"]) for one in panel["series"]] == [kept, kept], "0 keeps all; 3 of each run"
    saved = client.get("/api/figure/curves", params={**shown, "x": "objective/entropy", "suffix": "svg"})
    assert saved.content.startswith(b"<?xml")


def test_quantities_come_with_unit_and_meaning(client):
    found = {one["name"]: one for one in ask(client, "quantities", run=indexed(client))["quantities"]}
    assert found["objective/entropy"]["unit"] == "nats"
    assert found["evaluation/sums/mean_at_k"]["is_share"]
    assert found["evaluation/sums/truncated_frac"]["title"] == "truncated, sums, %"
    assert "step" not in found


def test_the_page_loads_the_charting_library_first_only_where_there_are_figures(client):
    library = "echarts.esm.min.js"
    assert library in client.get("/curves").text
    assert library not in client.get("/runs").text
    assert "{{" not in client.get("/runs").text + client.get("/curves").text


def tables(answer):
    """The tables of a document by key, each with its rows by their first cell."""
    return {
        table["key"]: {row["cells"][0]: row["cells"] for row in table["rows"]}
        for section in answer["document"]["sections"]
        for table in section["tables"]
    }


def figures(answer):
    return {one["key"]: one for section in answer["document"]["sections"] for one in section["figures"]}


def test_a_comparison_is_the_document_that_reports_are_made_of(client):
    answer = ask(client, "compare", run=indexed(client))
    assert {arm["name"] for arm in answer["arms"]} == {"atr", "grpo"}
    found, drawn = tables(answer), figures(answer)
    assert {row[4]["low"] for row in found["arms"].values()} == {800.0}
    assert all(row[1]["interval"][0] == pytest.approx(0.8, abs=0.01) for row in found["arms"].values())
    assert answer["measures"] == {"mean": "Mean@4", "pass": "Pass@4"}
    _, difference, _, new_seeds_and_problems, *_, verdict = found["differences/mean/sums"]["atr"]
    assert new_seeds_and_problems["interval"][0] < difference["value"]
    assert verdict
    assert [len(curve["y"]) for curve in drawn["over_k"]["series"]] == [4, 4]
    assert all(curve["low"][0] < curve["y"][0] < curve["high"][0] for curve in drawn["over_k"]["series"])
    assert len(drawn["grid/sums"]["x"]["labels"]) == 12
    swapped = ask(client, "compare", run=names(client), base="grpo", at="tokens", measure="pass")
    assert swapped["arms"][0]["name"] == "grpo"
    assert figures(swapped)["difference"]["title"] == "Difference in Pass@4, sums"


def left_out(answer):
    return next(one["text"] for one in answer["document"]["notes"] if one["text"].startswith("left out"))


def test_what_cannot_be_compared_is_explained(client):
    one = names(client)[0]
    assert ask(client, "compare", run=one)["reason"]
    assert "at must be one of" in ask(client, "compare", run=one, at="noon")["reason"]


def test_runs_that_did_not_end_or_lack_the_benchmark_are_left_out_with_the_reason(runs_dir, client, make_run):
    whole = ask(client, "compare", run=indexed(client))
    failed = make_run(runs_dir, "atr", 5, state=RunState.FAILED, until=3)
    elsewhere = make_run(runs_dir, "atr", 6, benchmark="products")
    eventually(lambda: len(names(client)) == 6)
    answer = ask(client, "compare", run=indexed(client))
    assert "reason" not in answer, answer["reason"]
    assert tables(answer)["scores"] == tables(whole)["scores"]
    assert f"{elsewhere.name} (has no score on sums, only on products)" in left_out(answer)
    (alert,) = (one for one in answer["document"]["alerts"] if "without a result" in one["text"])
    assert alert["detail"] == f"{failed.name} failed at step 3 of 8"


def test_arms_with_equal_windows_are_said_to_be_the_same(runs_dir, client, make_run):
    for seed in (0, 1):
        make_run(runs_dir, "clip", seed, ability=0.4)
    eventually(lambda: len(names(client)) == 6)
    answer = ask(client, "compare", run=indexed(client))
    [same] = [one["text"] for one in answer["document"]["answer"] if one["key"] == "same_method"]
    assert same.startswith("grpo and clip are the same method")


def test_a_run_of_an_unknown_kind_is_shown_and_compared_by_its_text(runs_dir, client, make_run):
    unknown = [make_run(runs_dir, "mine", seed, ability=0.5).name for seed in (0, 1)]
    eventually(lambda: len(names(client)) == 6)
    assert run_of(client, unknown[0])["problems"] == []
    region = ask(client, "trust-region", run=unknown[0])
    title = "of_a_plugin (delta 0.1): unknown divergence of_a_plugin; install the plugin that defines it"
    assert region["document"]["title"] == title
    assert num_tokens(region) > 0
    answer = ask(client, "compare", run=indexed(client))
    assert {name: cells[1] is None for name, cells in tables(answer)["arms"].items()} == {
        "atr": False,
        "grpo": False,
        "mine": True,
    }
    assert not any(one["key"] == "same_method" for one in answer["document"]["answer"])


def num_tokens(answer):
    """The tokens in the bins of the histogram of ratios; the last value ends the last bin."""
    [histogram] = [one for one in answer["document"]["sections"][0]["figures"] if one["key"] == "ratios"]
    return sum(count or 0.0 for one in histogram["series"] for count in one["y"][:-1])


def test_the_trust_region_counts_all_tokens_and_what_was_cut(client):
    name = next(name for name in names(client) if "atr" in name)
    answer = ask(client, "trust-region", run=name)
    assert answer["steps"] == list(range(1, 9))
    assert num_tokens(answer) == pytest.approx(8 * 28, abs=1)
    document = answer["document"]
    assert document["title"] == "kl3 (delta 0.0231): window [0.800, 1.231]"
    assert [one["text"] for one in document["answer"]] == [
        "224 tokens in the updates of 8 steps, counted once per update. A > 0, clipped above the window: "
        "2.0 %; A < 0, clipped below the window: 1.0 %"
    ]
    titles = [figure["title"] for figure in document["sections"][0]["figures"]]
    assert titles[:2] == ["Ratios against the window", "Shares of tokens clipped and outside"]
    one = ask(client, "trust-region", run=name, step=4)
    assert num_tokens(one) == pytest.approx(28, abs=1)
    assert one["document"]["answer"][0]["text"].startswith("28 tokens in the updates of step 4, counted")


def test_without_recorded_distributions_the_reason_is_given(runs_dir, client):
    name = names(client)[0]
    (runs_dir / name / "ratios.jsonl").unlink()
    answer = ask(client, "trust-region", run=name)
    [alert] = answer["document"]["alerts"]
    assert "has not recorded ratios" in alert["text"]


def test_completions_are_listed_and_filtered(client):
    name = names(client)[0]
    latest = ask(client, "samples", run=name)
    assert (latest["source"], latest["step"], latest["num"]) == ("training", 8, 6)
    assert latest["sources"] == {"training": [1, 4, 8], "sums": [0, 8]}
    assert ask(client, "samples", run=name, step=-1)["num"] == 18
    assert ask(client, "samples", run=name, verdict="correct")["num"] == 3
    assert ask(client, "samples", run=name, problem="train-1")["num"] == 2
    assert ask(client, "samples", run=name, text="NO SUCH TEXT")["num"] == 0
    assert ask(client, "samples", run=name, min_tokens=7)["num"] == 0
    assert ask(client, "samples", run=name, source="sums", step=0)["num"] == 48
    assert ask(client, "samples", run=name, step=5)["step"] == 8, "the next step that is recorded"
    assert ask(client, "samples", run=name, step=9)["step"] == 8


def test_one_completion_comes_with_its_tokens_and_its_text_unchanged(client, hostile):
    name = names(client)[0]
    sample = ask(client, "sample", run=name, source="training", step=8, problem="train-1", index=0)
    assert sample["text"] == hostile
    assert sample["ratio"] == pytest.approx([1.0, 1.1, 1.5, 0.9, 1.0, 1.0])
    assert sample["clipped"] == [0, 0, 1, 0, 0, 0]
    assert sample["tokens"] is None, "no checkpoint holds a tokenizer"
    evaluated = ask(client, "sample", run=name, source="sums", step=8, problem="test-1", index=0)
    assert evaluated["question"] == "1+1="


def test_a_run_shows_what_went_wrong_in_it(runs_dir, client):
    name = names(client)[0]
    assert ask(client, "run", name=name)["findings"] == []
    with (runs_dir / name / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 9, "time": 0.0, "objective/loss": "NaN"}) + "\n")
    eventually(lambda: len(ask(client, "run", name=name)["findings"]) == 1)
    [found] = ask(client, "run", name=name)["findings"]
    assert found["step"] == 9
    assert found["text"].startswith("divergence, step 9: objective/loss is not a finite number")


def test_a_run_shows_its_health_machine_and_evaluations(runs_dir, client):
    name = names(client)[0]
    row = {"step": 1, "time": 1.0, "system/cpu_frac": 0.5}
    (runs_dir / name / "system.jsonl").write_text(json.dumps(row) + "\n")
    health, evaluations = ask(client, "run", name=name)["document"]["sections"]
    assert [table["title"] for table in health["tables"]] == ["Health", "Machine"]
    assert evaluations["tables"][0]["title"].startswith("evaluation: sums")


def test_commands_to_stop_or_resume_are_given_only_where_they_work(runs_dir, client):
    here, elsewhere, imported, ended = names(client)
    for name, host in ((here, socket.gethostname()), (elsewhere, "elsewhere")):
        status = {"state": "running", "step": 1, "pid": os.getpid(), "host": host}
        status["pid_started"] = psutil.Process().create_time()
        (runs_dir / name / "status.json").write_text(json.dumps(status))
    config = json.loads((runs_dir / imported / "config.json").read_text())
    (runs_dir / imported / "config.json").write_text(json.dumps(config | {"kind": "imported"}))
    expected = [{"stop"}, set(), {"delete"}, {"resume", "delete"}]
    runs = (here, elsewhere, imported, ended)
    eventually(lambda: [set(ask(client, "run", name=name)["commands"]) for name in runs] == expected)


def test_where_runs_differ_is_answered_for_two_or_more(client):
    one, other = names(client)[:2]
    document = ask(client, "differences", run=[one, other])["document"]
    assert {table["key"] for table in document["sections"][0]["tables"]} >= {"settings"}
    assert client.get("/api/differences", params={"run": [one]}).status_code == 422
    assert client.get("/api/differences", params={"run": [one, "no/run"]}).status_code == 400


def test_notes_and_tags_are_written_and_shown(runs_dir, client):
    name = names(client)[0]
    answer = client.patch("/api/run", params={"name": name}, json={"note": "<b>best</b>", "tags": ["good"]})
    assert answer.json() == {"note": "<b>best</b>", "tags": ["good"], "is_archived": False}
    eventually(lambda: run_of(client, name)["tags"] == ["good"])
    assert json.loads((runs_dir / name / "annotations.json").read_text())["note"] == "<b>best</b>"
    assert ask(client, "run", name=name)["note"] == "<b>best</b>"


def test_of_changes_that_come_at_once_none_is_lost(runs_dir, client):
    for name in names(client):
        changes = {"note": "mine"}, {"tags": ["yours"]}, {"is_archived": True}
        with ThreadPoolExecutor() as senders:
            sent = [senders.submit(client.patch, "/api/run", params={"name": name}, json=c) for c in changes]
        assert [one.result().status_code for one in sent] == [200, 200, 200]
        written = json.loads((runs_dir / name / "annotations.json").read_text())
        assert written == {"note": "mine", "tags": ["yours"], "is_archived": True}


def test_nothing_is_written_without_origin_and_token(runs_dir, client):
    name = names(client)[0]
    for headers in ({"origin": "http://evil.example"}, {"x-atrium-token": "guess"}, {"host": "evil.example"}):
        answer = client.patch("/api/run", params={"name": name}, json={"note": "x"}, headers=headers)
        assert answer.status_code == 403, headers
    for body in (b"{", b"[]", b'{"path": "x"}', b"x" * 200_000):
        assert client.patch("/api/run", params={"name": name}, content=body).status_code in (400, 413)
    assert client.patch("/api/run", params={"name": "no/such"}, json={"note": "x"}).status_code == 400
    assert not list(runs_dir.rglob("annotations.json"))


def test_other_methods_and_unknown_pages_are_refused(client):
    assert client.post("/api/runs").status_code == 405
    assert client.delete("/api/run", params={"name": "x"}).status_code == 405
    assert client.get("/nothing").status_code == 404
    assert client.get("/api/nothing").status_code == 404
    assert client.get("/docs").status_code == 404


def raw_get(address, target):
    """A request whose path no client has tidied up."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        connection.sendall(
            f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        received = b""
        while part := connection.recv(65_536):
            received += part
    return received


OUTSIDE = (
    "/static/../server.py",
    "/static/%2e%2e/server.py",
    "/static/..%2fserver.py",
    "/static//etc/passwd",
    "/../../../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/api/run?name=../secret",
    "/api/run?name=/etc",
    "/api/run?name=secret/run",
    "/api/samples?run=RUN&source=../../../secret&step=1",
    "/api/sample?run=RUN&source=..&step=1&problem=x&index=0",
    "/api/sample?run=RUN&source=%2e%2e%2f%2e%2e&step=1&problem=x&index=0",
    "/api/sweep?name=..",
    "/api/sweep?name=../study",
    "/api/trust-region?run=../secret/run",
)


def test_no_path_leads_out_of_the_runs_directory(runs_dir, client, address):
    secret = runs_dir.parent / "secret" / "run"
    secret.mkdir(parents=True)
    (secret / "status.json").write_text('{"error": "the secret"}')
    name = names(client)[0]
    for target in OUTSIDE:
        received = raw_get(address, target.replace("RUN", name))
        assert received.startswith(b"HTTP/1.1 4") or "source=" in target, target
        for content in (b"the secret", b"root:", b"def create_app"):
            assert content not in received, target


def test_links_out_of_the_runs_directory_are_not_followed(runs_dir, client, make_run):
    outside = runs_dir.parent / "elsewhere"
    whole = make_run(outside, "atr", 7)
    (runs_dir / "study" / "linked").symlink_to(whole.path)
    (runs_dir / "leaks").symlink_to(outside)
    partly = runs_dir / "study" / "partly"
    shutil.copytree(runs_dir / names(client)[0], partly)
    eventually(lambda: any(name.endswith("/partly") for name in names(client)))
    (partly / "log.txt").symlink_to("/etc/passwd")

    def links_out():
        return [run["name"] for run in ask(client, "runs")["runs"] if "outside" in " ".join(run["problems"])]

    # The link came after the run was listed.
    eventually(lambda: any(name.endswith("/partly") for name in links_out()))
    outward = links_out()
    for run in ask(client, "runs")["runs"]:
        if run["name"].endswith(("linked", "partly")) or "elsewhere" in run["name"] or "s7" in run["name"]:
            assert run["name"] in outward
            assert client.get("/api/run", params={"name": run["name"]}).status_code == 400
    deep = runs_dir / names(client)[-1]
    folder = next(path for path in (runs_dir / "study").iterdir() if path.name == deep.name)
    shutil.rmtree(folder / "rollouts")
    (folder / "rollouts").symlink_to(whole.path / "rollouts")
    response = client.get("/api/samples", params={"run": deep.relative_to(runs_dir).as_posix()})
    assert "outside" in response.text or response.json()["num"] == 0


def test_damaged_folders_are_shown_with_a_reason(runs_dir, client, make_run):
    study = runs_dir / "study"
    (study / "empty").mkdir()
    killed = make_run(runs_dir, "atr", 5)
    status = json.loads(killed.status_file.read_text())
    killed.status_file.write_text(json.dumps(status | {"state": "running", "pid": 2**22 + 1}))
    with killed.metrics_file.open("a") as file:
        file.write('{"step": 9, "rollout/rew')
    newer = make_run(runs_dir, "atr", 6)
    newer.status_file.write_text(json.dumps(status | {"format_version": 99}))
    for name, content in {"config.json": "{", "status.json": "[]", "summary.json": "7"}.items():
        (study / "broken").mkdir(exist_ok=True)
        (study / "broken" / name).write_text(content)
    (study / "broken" / "metrics.jsonl").write_bytes(b"\xff\xfe\n{}\n")
    (study / "broken" / "evaluations.jsonl").write_bytes(b"{\n[]\n")
    (study / "broken" / "ratios.jsonl").write_bytes(b"\n\n{}\n")
    (study / "broken" / "rollouts").mkdir()
    (study / "broken" / "rollouts" / "step-000001.parquet").write_bytes(b"PAR1")
    strange = make_run(runs_dir, "atr", 7)
    strange.status_file.write_text(json.dumps(status | {"wall_s": float("nan"), "step": 10**400}))
    strange.config_file.write_text('{"a":' * 900 + "1" + "}" * 900)
    (runs_dir / "loose.txt").write_text("not a run")
    eventually(lambda: len(names(client)) == 9)
    assert run_of(client, "empty")["problems"] == ["the folder is empty"]
    assert run_of(client, killed.path.name)["state"] == "killed"
    assert "newer Atrium" in run_of(client, newer.path.name)["problems"][0]
    assert any("status.json" in problem for problem in run_of(client, "broken")["problems"])
    everything = indexed(client)
    shown = {"run": everything, "metric": "rollout/reward", "group": "run"}
    eventually(lambda: len(ask(client, "curves", **shown)["panels"][0]["series"]) == 7)
    for name in everything:
        ask(client, "run", name=name)
        ask(client, "trust-region", run=name)
        ask(client, "quantities", run=name)
        ask(client, "samples", run=name)
    assert ask(client, "samples", run=run_of(client, "broken")["name"], step=1)["problems"]
    assert "broken" in left_out(ask(client, "compare", run=everything))


def test_files_that_cannot_be_read_are_named(runs_dir, client):
    name = names(client)[0]
    for file in ("metrics.jsonl", "evaluations.jsonl", "summary.json", "log.txt", "annotations.json"):
        (runs_dir / name / file).unlink(missing_ok=True)
        (runs_dir / name / file).mkdir()
    problem = eventually(lambda: ask(client, "runs")["index"]["problem"])
    assert name in problem
    problems = " ".join(run_of(client, name)["problems"])
    assert "evaluations.jsonl cannot be read" in problems
    assert "annotations.json cannot be read" in problems
    ask(client, "run", name=name)


def test_live_runs_appear_grow_and_go(runs_dir, client, make_run):
    before = indexed(client)
    folder = make_run(runs_dir, "atr", 9)
    new = eventually(lambda: [name for name in indexed(client) if name not in before])[0]
    with RunFolder(folder.path).metrics_file.open("a") as file:
        file.write('{"step": 9, "time": 1.0, "rollout/reward": 5.0}\n')

    def last():
        panel = ask(client, "curves", run=new, metric="rollout/reward")["panels"][0]
        return panel["series"] and panel["series"][0]["y"][-1] == 5.0

    eventually(last)
    shutil.rmtree(folder.path)
    eventually(lambda: new not in names(client))


def test_an_update_carries_only_the_runs_that_changed(runs_dir, client, make_run):
    indexed(client)
    before = ask(client, "runs")
    assert before["is_whole"]
    assert ask(client, "runs", since=before["version"])["runs"] == []
    changed = before["runs"][1]["name"]
    (runs_dir / changed / "annotations.json").write_text('{"note": "new"}')
    update = eventually(lambda: (found := ask(client, "runs", since=before["version"]))["runs"] and found)
    assert [(run["name"], run["note"]) for run in update["runs"]] == [(changed, "new")]
    assert not update["is_whole"]
    metric = {"metric": "rollout/reward", "since": before["version"]}
    assert ask(client, "lasts", **metric)["lasts"]["rollout/reward"].keys() == {changed}
    make_run(runs_dir, "mine", 0, experiment="other")  # its settings differ: the rows of all runs do
    eventually(lambda: len(ask(client, "runs", since=before["version"])["runs"]) == 5)
    shutil.rmtree(runs_dir / changed)
    eventually(lambda: ask(client, "runs", since=before["version"])["is_whole"])


def test_news_reach_an_open_page(runs_dir, client, make_run):
    with client.stream("GET", "/api/events") as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data:"))
        first = json.loads(next(lines)[5:])
        make_run(runs_dir, "atr", 3)
        assert json.loads(next(lines)[5:])["version"] > first["version"]


def test_answers_carry_the_headers_that_keep_pages_apart(client):
    for path in ("/", "/static/app.js", "/api/runs"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe-eval" not in client.get("/").headers["content-security-policy"]


def test_the_atlas_is_of_random_rollouts_or_of_all_those_of_a_run(runs_dir, client):
    assert ask(client, "atlas")["document"]["answer"][0]["text"].endswith("random rollouts.")
    name = names(client)[0]
    assert f"3 steps of {name}" in ask(client, "atlas", run=name)["document"]["answer"][0]["text"]
    rollouts = runs_dir / name / "rollouts"
    shutil.copy(rollouts / "step-000008.parquet", rollouts / "step-000012.parquet")
    assert f"4 steps of {name}" in ask(client, "atlas", run=name)["document"]["answer"][0]["text"]
    assert client.get("/api/atlas", params={"run": "nowhere"}).status_code == 400


def test_sweeps_are_shown_as_their_snapshot_says(runs_dir, client, make_sweep):
    assert ask(client, "sweeps") == {"sweeps": []}
    make_sweep(runs_dir)
    (runs_dir / "sweeps" / "broken").mkdir()
    (runs_dir / "sweeps" / "broken" / "state.json").write_text("{")
    found = {sweep["name"]: sweep for sweep in ask(client, "sweeps")["sweeps"]}
    assert found["delta"]["state"] == "running"
    assert "not valid JSON" in found["broken"]["problem"]
    sweep = ask(client, "sweep", name="delta")
    document = sweep["document"]
    assert [one["text"] for one in document["answer"]] == ["So far."]
    contrasts, trials = document["sections"][0]["tables"]
    assert contrasts["rows"][0]["cells"][-1] == "as predicted"
    assert [row["cells"][2] for row in trials["rows"]].count("complete") == 6
    score = next(row for row in trials["rows"] if row["cells"][0] == "delta=0.01")["cells"][6]
    assert score["value"] == pytest.approx(0.31)
    assert score["interval"][0] < 0.31 < score["interval"][1]
    assert sweep["key"] == "divergence.delta"
    other = ask(client, "sweep", name="delta", key="optimizer.learning_rate", score="pass_at_k")
    assert other["document"]["sections"][0]["figures"][0]["title"] == "Pass@K against optimizer.learning_rate"
    key = next(figure["key"] for section in document["sections"] for figure in section["figures"])
    picture = client.get("/api/figure/sweep", params={"name": "delta", "figure": key})
    assert picture.content.startswith(b"<?xml")
    assert picture.headers["content-disposition"].endswith(f'filename="delta-{key}.svg"')
    broken = ask(client, "sweep", name="broken")["document"]
    assert [one["text"] for one in broken["alerts"]] == ["state.json is not valid JSON"]
    assert not any("sweeps/" in name for name in names(client))


def test_an_empty_folder_is_an_empty_table(tmp_path, serving):
    (tmp_path / "none").mkdir()
    with serving(tmp_path / "none") as address:
        table = httpx.get(f"{address}/api/runs").json()
    assert table["runs"] == []
    assert table["index"] == {"done": 0, "total": 0, "problem": None}


def test_the_report_on_a_comparison_is_a_file_and_needs_nothing_from_outside(client):
    asked = {"run": indexed(client)}
    page = client.get("/api/report", params=asked)
    assert page.headers["content-disposition"] == 'attachment; filename="grpo-vs-atr.html"'
    assert "Sentences for a paper" in page.text
    assert "4 runs are held to a claim" in page.text
    assert "<script" not in page.text
    table = client.get("/api/report", params={**asked, "suffix": "tex", "base": "atr"})
    assert r"\label{tab:atr-vs-grpo}" in table.text
    alone = client.get("/api/report", params={"run": names(client)[:1]})
    assert alone.status_code == 400
    assert alone.json()["error"]


def test_figures_for_papers_come_from_the_query_of_the_view(client):
    asked = {"run": indexed(client), "metric": "rollout/reward"}
    for suffix, start in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        drawn = client.get("/api/figure/curves", params={**asked, "suffix": suffix, "columns": 2})
        assert drawn.headers["content-disposition"] == f'attachment; filename="rollout-reward.{suffix}"'
        assert drawn.content.startswith(start)
    hidden = client.get("/api/figure/curves", params={**asked, "hide": ["atr", "grpo"]})
    assert "curves cannot be drawn" in hidden.json()["error"]
    compared = {"run": asked["run"], "figure": "difference", "suffix": "svg"}
    assert b"<!-- points of Mean@" in client.get("/api/figure/comparison", params=compared).content
    assert client.get("/api/figure/comparison", params={**compared, "figure": "pie"}).status_code == 400
    assert client.get("/api/figure/curves", params={**asked, "columns": 3}).status_code == 422
