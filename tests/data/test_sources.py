"""Fetching from a Hub: a real server on this machine, with all that goes wrong on the way."""

from __future__ import annotations

import json

import pytest
from huggingface_hub import constants

from atrium.base.errors import DataError
from atrium.data.fields import UnreadableValueError
from atrium.data.problem_sets import read_problem_set
from atrium.data.settings import Fields, ProblemFiles
from atrium.data.sources import is_local, locate_files

REPOSITORY = "some-lab/sums"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = "".join(json.dumps({"problem": f"What is {n}+{n}?", "answer": 2 * n}) + "\n" for n in range(40))


def _no_box(text):
    raise UnreadableValueError("no box expected")


@pytest.fixture
def fetch(hub, tmp_path):
    """Reads the repository's problems into a cache of this test."""

    def read(**changes):
        settings = {
            "name": "sums",
            "source": REPOSITORY,
            "files": ("test.jsonl",),
            "fields": Fields(question=("problem",), answer=("answer",)),
            "expected_num_rows": 40,
            **changes,
        }
        messages = []
        loaded = read_problem_set(
            ProblemFiles(**settings), cache_dir=tmp_path, read_box=_no_box, log=messages.append
        )
        return loaded, messages

    hub.add(REPOSITORY, "test.jsonl", ROWS)
    return read


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_a_file_comes_from_the_hub_with_its_commit_and_from_the_cache_the_second_time(
    hub, fetch, tmp_path, is_large
):
    hub.add(REPOSITORY, "test.jsonl", ROWS, is_large=is_large)
    first, messages = fetch()
    assert [problem.answer for problem in first.problems] == [str(2 * n) for n in range(40)]
    assert (first.origin.revision, first.origin.num_rows) == (COMMIT, 40)
    assert messages == [f"fetching test.jsonl of {REPOSITORY} from {hub.address}"]
    assert list((tmp_path / "huggingface").iterdir())
    num_downloads = len(hub.downloads())
    second, messages = fetch(revision=COMMIT)
    assert second.problems == first.problems
    assert (len(hub.downloads()), messages) == (num_downloads, [])


def test_the_only_data_file_need_not_be_named(hub, fetch):
    hub.add(REPOSITORY, "README.md", "# sums")
    assert len(fetch(files=())[0].problems) == 40
    hub.add(REPOSITORY, "train.jsonl", ROWS)
    with pytest.raises(
        DataError, match=r"has 2 data files \(test\.jsonl, train\.jsonl\).* to the files to read"
    ):
        fetch(files=())


def test_what_was_fetched_serves_without_the_network(hub, fetch, monkeypatch):
    fetch()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    num_requests = len(hub.requests)
    for files in (("test.jsonl",), ()):
        loaded, _ = fetch(files=files)
        assert (len(loaded.problems), loaded.origin.revision) == (40, COMMIT)
    assert len(hub.requests) == num_requests
    with pytest.raises(DataError, match=r"HF_HUB_OFFLINE.*give a local copy with source=PATH"):
        fetch(source="some-lab/other")


def test_all_files_of_a_repository_come_from_one_commit(hub, fetch):
    hub.add(REPOSITORY, "more.jsonl", ROWS.replace("What", "Tell me what"))
    loaded, _ = fetch(files=("test.jsonl", "more.jsonl"), expected_num_rows=80)
    assert len(loaded.problems) == 80
    asked = [path for method, path, _ in hub.requests if method == "HEAD"]
    assert asked[-1] == f"datasets/{REPOSITORY}/resolve/{COMMIT}/more.jsonl"


def test_a_dropped_connection_is_taken_up_where_it_broke(hub, fetch):
    hub.drops["test.jsonl"] = 2
    loaded, _ = fetch()
    assert len(loaded.problems) == 40
    starts = [
        None if text is None else int(text.removeprefix("bytes=").rstrip("-")) for text in hub.downloads()
    ]
    assert starts[0] is None
    assert 0 < starts[1] < starts[2] < len(ROWS)


def test_a_connection_that_always_drops_is_an_error_and_files_that_are_whole_are_kept(hub, fetch):
    hub.add(REPOSITORY, "more.jsonl", ROWS.replace("What", "Tell me what"))
    hub.drops["more.jsonl"] = 1_000
    files = {"files": ("test.jsonl", "more.jsonl"), "expected_num_rows": 80}
    with pytest.raises(DataError, match=r"dataset some-lab/sums, file more\.jsonl.*: the download failed"):
        fetch(**files)
    hub.drops.clear()
    hub.requests.clear()
    assert len(fetch(**files)[0].problems) == 80
    assert [path for method, path, _ in hub.requests if method == "GET"] == [
        f"datasets/{REPOSITORY}/resolve/{COMMIT}/more.jsonl"
    ]


def test_other_numbers_than_declared_are_an_error(fetch):
    with pytest.raises(DataError, match=r"'sums' \(test\.jsonl of some-lab/sums\) must have 39 rows, got 40"):
        fetch(expected_num_rows=39)
    with pytest.raises(
        DataError, match=r"must have 41 distinct problems, got 40.*expected_num_problems=null"
    ):
        fetch(expected_num_problems=41)


def test_a_field_that_no_row_has_is_an_error_that_lists_those_there_are(fetch):
    with pytest.raises(DataError, match=r"no row has a field for the question.*a row has problem, answer"):
        fetch(fields=Fields(question=("prompt",), answer=("answer",)))
    with pytest.raises(DataError, match="no row has a field for the answer, expected gold, solution;"):
        fetch(fields=Fields(question=("problem",), answer=("gold",), solution=("solution",)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": ("train.jsonl",)}, r"file train\.jsonl: the Hub has no such file"),
        ({"source": "some-lab/sum"}, "dataset some-lab/sum, file test.jsonl: the Hub has no such dataset"),
        ({"source": "some-lab/sum", "files": ()}, "dataset some-lab/sum: the Hub has no such dataset"),
        ({"revision": "v2"}, "revision v2: there is no such revision"),
        ({"source": "sums"}, "there is no such file, and the name is not a Hub id"),
        ({"source": "data/sums/test"}, "there is no such file or folder"),
        ({"source": "sums.parquet"}, "there is no such file or folder"),
    ],
)
def test_what_is_not_there_is_one_line_that_says_so(fetch, changes, message):
    with pytest.raises(DataError, match=message) as caught:
        fetch(**changes)
    assert "\n" not in str(caught.value)


def test_a_gated_dataset_says_how_to_get_access(hub, fetch):
    hub.gated.add(REPOSITORY)
    with pytest.raises(
        DataError, match="access is restricted; request it on the Hub, then run `hf auth login`"
    ):
        fetch()


def test_a_server_that_is_not_there_is_one_line(fetch, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match="the Hub cannot be reached"):
        fetch()


def test_the_users_own_cache_is_respected(hub, fetch, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "theirs"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "theirs"))
    fetch()
    assert list((tmp_path / "theirs").iterdir())
    assert not (tmp_path / "huggingface").exists()


def test_a_local_file_or_folder_needs_no_hub(hub, fetch, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.jsonl").write_text(ROWS)
    for source, files in ((tmp_path / "own" / "mine.jsonl", ("test.jsonl",)), (tmp_path / "own", ())):
        loaded, _ = fetch(source=str(source), files=files)
        assert (len(loaded.problems), loaded.origin.files) == (40, ("mine.jsonl",))
        assert loaded.origin.revision is None
    assert not hub.requests
    with pytest.raises(DataError, match=r"there is no file other\.jsonl; the folder has mine\.jsonl"):
        locate_files(str(tmp_path / "own"), ["other.jsonl"], revision=None, cache_dir=tmp_path, log=print)


def test_paths_and_hub_ids_are_told_apart():
    assert all(is_local(text) for text in ("./a/b", "~/data", "/data", "a/b/c", "lab/sums.parquet", "x.csv"))
    assert not any(is_local(text) for text in ("openai/gsm8k", "math-ai/aime25"))
