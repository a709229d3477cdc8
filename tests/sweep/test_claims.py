"""Claims: of any number of workers exactly one wins, and the dead hold nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import psutil

from atrium.sweep.claims import Claims, this_worker


def claims(storage, **changes):
    one = Claims(storage, "small", replace(this_worker(), **changes), dead_after_s=30.0)
    one.beat()
    return one


def test_of_two_workers_one_holds_a_trial_and_keeps_it(storage):
    first, second = claims(storage), claims(storage)
    assert first.acquire("search:0")
    assert not second.acquire("search:0")
    assert first.acquire("search:0")
    assert first.is_mine("search:0")
    assert not second.is_mine("search:0")


def test_of_many_workers_at_once_exactly_one_wins_each_trial(storage):
    workers = [claims(storage) for _ in range(6)]
    won = {name: [] for name in ("search:0", "search:1", "search:2")}

    def contend(worker):
        for name in won:
            if worker.acquire(name):
                won[name].append(worker)

    threads = [threading.Thread(target=contend, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(winners) for winners in won.values()] == [1, 1, 1]


def test_what_a_worker_held_is_free_when_it_has_ended(storage):
    first, second = claims(storage), claims(storage)
    first.acquire("search:0")
    first.end()
    assert second.acquire("search:0", progress=7)
    assert second.num_takeovers("search:0") == 1
    assert not first.is_mine("search:0")


def test_a_worker_of_this_host_is_dead_when_its_process_is_gone(journal):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = psutil.Process(process.pid).create_time()
    first, second = claims(journal, pid=process.pid, pid_started=started), claims(journal)
    first.acquire("search:0")
    assert not second.acquire("search:0")
    process.kill()
    process.wait()
    assert second.acquire("search:0")


def test_a_worker_of_another_host_is_dead_when_its_heartbeat_stands_still(journal):
    now = [0.0]
    first = claims(journal, host="elsewhere")
    first.acquire("search:0")
    second = Claims(journal, "small", this_worker(), dead_after_s=30.0, clock=lambda: now[0])
    second.beat()
    assert not second.acquire("search:0")
    now[0] = 29.0
    first.beat()
    assert not second.acquire("search:0")
    now[0] = 58.0
    assert not second.acquire("search:0"), "it was seen to beat 29 s ago"
    now[0] = 60.0
    assert second.acquire("search:0")


def test_claims_without_progress_are_counted_from_the_newest(journal):
    for progress in (0, 5, 5, 5):
        worker = claims(journal)
        worker.acquire("search:0", progress=progress)
        worker.end()
    assert worker.num_attempts_without_progress("search:0", 5) == 3
    assert worker.num_attempts_without_progress("search:0", 6) == 0
