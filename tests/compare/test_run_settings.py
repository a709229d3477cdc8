from __future__ import annotations

from atrium.compare.run_settings import differing, label, labels, method_keys


def test_runs_differ_in_values_but_not_in_settings_that_one_version_lacks():
    runs = [{"a": "1", "b": "2", "new": "0"}, {"a": "1", "b": "3"}, {"a": "1", "b": "2", "new": "0"}]
    assert differing(runs) == ["b"]
    assert differing([*runs, {"a": "1", "b": "2", "new": "1"}]) == ["b", "new"]
    assert differing([]) == []


def test_a_section_instead_of_a_value_differs_in_all_its_keys():
    off, on = {"kl": "null", "x": "1"}, {"kl.kind": "k3", "kl.coefficient": "0.1", "x": "1"}
    assert differing([off, on]) == ["kl", "kl.kind", "kl.coefficient"]


def test_settings_of_one_kind_of_a_section_differ_from_another_kind():
    one, other = {"d.kind": "kl3", "d.delta": "0.1"}, {"d.kind": "window", "d.lower": "0.8"}
    assert differing([one, other]) == ["d.kind", "d.delta", "d.lower"]


def test_seeds_and_paths_do_not_distinguish_methods():
    one = {"seed": "0", "runs_dir": "a", "compute.device": "cpu", "tracking.kind": "x", "delta": "1"}
    other = {"seed": "1", "runs_dir": "b", "compute.device": "cuda", "tracking.kind": "y", "delta": "2"}
    assert method_keys([one, other]) == ["delta"]


def test_a_label_omits_absent_values_and_unneeded_digits():
    keys, groups = ["kind", "delta"], [("kl3", "0.023143551314209754"), ("none", "null")]
    assert list(labels(keys, groups).values()) == ["kl3 · delta 0.02314", "none"]
    close = [*groups, ("kl3", "0.023143551314209755")]
    assert list(labels(keys, close).values()) == [
        "kl3 · delta 0.023143551314209754",
        "none · delta null",
        "kl3 · delta 0.023143551314209755",
    ]


def test_differences_are_found_in_time_linear_in_the_number_of_runs():
    class Counted(dict):
        num_reads = 0

        def get(self, *arguments):
            Counted.num_reads += 1
            return super().get(*arguments)

    def num_reads(num_runs):
        Counted.num_reads = 0
        kinds = ({"d.kind": "kl3", "d.delta": "0.1"}, {"d.kind": "window", "d.lower": "0.8"})
        differing([Counted(kinds[number % 2]) for number in range(num_runs)])
        return Counted.num_reads

    assert num_reads(400) <= 11 * num_reads(40)


def test_a_repeated_word_occurs_once_in_a_label():
    assert label(["algorithm.name", "divergence.kind"], ["kl3", "kl3"]) == "kl3"
    assert label(["flag"], ["true"]) == "flag true"


def test_a_label_of_absent_values_alone_names_them():
    assert list(labels(["kl.coef"], [("null",), ("0.1",)]).values()) == ["coef null", "coef 0.1"]
