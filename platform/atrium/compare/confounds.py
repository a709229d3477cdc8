"""Confounds: recorded differences between arms other than their methods.

A confound is a recorded setting that differs between two arms, is not part of the method's own sections and
is not set by a preset file. Random seeds, paths, trackers and placement are not confounds, and neither are
settings that a planned sweep tuned or by which the user groups the runs. `FACTS` lists what runs record
besides their settings. To report another recorded fact, as a confound or as part of the environment, add it
to this list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from atrium.base.nested import flattened_text, mapping_at, setting
from atrium.base.recorded import read_object
from atrium.compare.arms import Arm
from atrium.compare.run_settings import ABSENT, differing, short_number
from atrium.config.presets import settings_outside
from atrium.method.method import SECTIONS
from atrium.runs.layout import SWEEPS_DIR
from atrium.runs.method_settings import tells_methods_apart
from atrium.runs.run_folder import RunFolder

MOST_QUOTED = 3
"""The largest number of confounds that a sentence for a paper may name; with more, none is given."""
_SHOWN_BELOW = frozenset({"compute.dtype"})
"""Settings that are listed with the facts below the confounds."""
_LEFT_OPEN = ("auto", "???")
"""Values in a preset file that leave the choice to another setting."""
_DIGEST = 10
_TUNED = ("space", "derived")
_MOST_VALUES = 3
"""The largest number of values of a version or of hardware that a note lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact that a run records, found under a dotted key of `config.json` or `provenance.json`.

    If the key is a section, the whole section is one value. `follows` lists prefixes of settings that
    determine the fact. If such a setting is a confound or groups the runs, the fact is not a confound. If
    `is_long` is set, the value is shown as the first digits of its SHA-256 hash.
    """

    name: str
    key: str
    file: Literal["config", "provenance"] = "provenance"
    is_confound: bool = False
    follows: str | tuple[str, ...] = "-"
    is_long: bool = False


_MODEL = ("model.source", "model.revision", "model.kind", "model.weights")
FACTS = (
    Fact(name="grader version", key="data.grader_version", is_confound=True, follows="grader.kind"),
    Fact(name="dataset content", key="data.dataset_content_hash", is_confound=True, follows="dataset."),
    Fact(
        name="rendered prompts",
        key="data.prompt_hashes",
        is_confound=True,
        follows=(*_MODEL, "model.prompt", "model.thinking", "model.date", "dataset.", "benchmark."),
        is_long=True,
    ),
    Fact(
        name="content of model.source",
        key="data.model_source",
        is_confound=True,
        follows=_MODEL,
        is_long=True,
    ),
    Fact(name="packing", key="compute.packing", file="config", is_confound=True),
    Fact(name="commit", key="code.commit"),
    Fact(name="uncommitted changes", key="code.diff", is_long=True),
    Fact(name="plugins", key="plugins", is_long=True),
    Fact(name="atrium", key="atrium"),
    Fact(name="torch", key="packages.torch"),
    Fact(name="transformers", key="packages.transformers"),
    Fact(name="vllm", key="packages.vllm"),
    Fact(name="python", key="python"),
    Fact(name="dtype", key="compute.dtype", file="config"),
    Fact(name="processor", key="hardware.cpu"),
    Fact(name="GPUs", key="hardware.gpus"),
)
"""The facts that runs record besides their settings. A missing fact does not count as a difference."""


_EXPECTED = {
    "model": "model",
    "dataset": "training problems",
    "optimizer": "optimizer",
    "rollout": "sampling in training",
    "evaluation": "sampling in evaluation",
}
"""Sections of settings, with the words that name a section missing from an imported run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A setting or fact with its values as text, by arm name."""

    name: str
    values: Mapping[str, tuple[str, ...]]

    def differs(self, *arms: str) -> bool:
        """Return whether at least two of the given arms, by default all, have different known values."""
        known = [self.values[arm] for arm in arms or self.values if self.values[arm]]
        return len({frozenset(values) for values in known}) > 1

    @property
    def words(self) -> str:
        """The values as text, such as `optimizer.learning_rate is 3e-4 in atr, 1e-3 in grpo`."""
        by_value: dict[str, list[str]] = {}
        for arm, values in self.values.items():
            if values:
                by_value.setdefault(" or ".join(map(short_number, values)), []).append(arm)
        if len(by_value) == 1:
            return f"{self.name} {next(iter(by_value))}"
        parts = (f"{value} in {' and '.join(names)}" for value, names in by_value.items())
        return f"{self.name} is {', '.join(parts)}"

    def quoted(self, *arms: str) -> str:
        """Return the values of the given arms for a sentence, such as `learning rates 3e-4 and 1e-3`."""
        texts = [" or ".join(map(short_number, self.values[arm])) or "unknown" for arm in arms]
        is_flag = {"true", "false"} & {value for arm in arms for value in self.values[arm]}
        return f"{_spoken(self.name) if is_flag else _plural(_spoken(self.name))} {' and '.join(texts)}"


def read_confounds(
    arms: Sequence[Arm], by: Sequence[str] = ()
) -> tuple[tuple[Recorded, ...], tuple[Recorded, ...]]:
    """Return the confounds between any two arms, settings first, and the environment facts of all arms.

    Keys in `by` are not confounds, and neither are facts that follow from them. If `by` contains a section's
    `kind`, the other settings of this section are not confounds either. The environment facts are versions,
    commit, uncommitted changes, plugins, dtype and hardware. Facts that no run recorded are left out.
    """
    runs = [run for arm in arms for run in arm.all_settings]
    tuned = _tuned([folder for arm in arms for folder in arm.runs.values()])
    grouped = tuple(key.removesuffix("kind") for key in by if key.endswith(".kind"))
    found: list[Recorded] = []
    for key in differing(runs):
        if not _can_confound(key) or key in tuned or key in by or key.startswith(grouped):
            continue
        values = {arm.name: _distinct([run.get(key, ABSENT) for run in arm.all_settings]) for arm in arms}
        one = Recorded(name=key, values=values)
        if one.differs() and not _is_preset(key, arms) and not _follows(one, found):
            found.append(one)
    told = (*by, *(one.name for one in found))
    environment = []
    for fact, one in zip(FACTS, _facts(arms), strict=True):
        is_told = any(key.startswith(fact.follows) for key in told)
        if fact.is_confound and one.differs() and not is_told:
            found.append(one)
        elif not fact.is_confound and any(one.values.values()):
            environment.append(one)
    return tuple(found), tuple(environment)


def unknown_settings(arm: Arm) -> tuple[str, ...]:
    """Describe the settings that an arm's imported runs do not record.

    The result is empty for Atrium's own runs.
    """
    imports = [mapping_at(read_object(run.provenance_file)[0], "import") for run in arm.runs.values()]
    if not any(imports):
        return ()
    sections = {key.partition(".")[0] for run in arm.all_settings for key in run}
    lacking = [words for section, words in _EXPECTED.items() if section not in sections]
    if any(record.get("is_seed_stated") is False for record in imports):
        lacking.append("seeds (numbered by the import)")
    return tuple(lacking)


def unknown_lines(unknown: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return lines that name unknown settings. Arms that lack the same settings share a line."""
    arms: dict[tuple[str, ...], list[str]] = {}
    for arm, lacking in unknown.items():
        arms.setdefault(lacking, []).append(arm)
    return [
        f"unknown for {' and '.join(filter(None, (', '.join(own[:-1]), own[-1])))}: {', '.join(lacking)}"
        for lacking, own in arms.items()
    ]


def unknown_words(unknown: Mapping[str, tuple[str, ...]], *arms: str) -> str:
    """Return the clause `, with unknown settings of a and b,` for a sentence.

    The result is empty if these arms recorded all settings.
    """
    found = [arm for arm in arms if arm in unknown]
    return f", with unknown settings of {' and '.join(found)}," if found else ""


def environment_lines(environment: Sequence[Recorded]) -> list[str]:
    """Return up to three lines on versions and hardware: the same in all arms, partly recorded, different.

    The first line lists facts that all arms recorded with the same value. The second lists facts that some
    arms did not record and that are equal in the others. The third lists facts that differ; if a fact has
    more than three different values, only their number is stated. A line without facts is left out.
    """
    alike = [one for one in environment if not one.differs()]
    shared = [one.words for one in alike if all(one.values.values())]
    partial = [one.words for one in alike if not all(one.values.values())]
    different = []
    for one in (fact for fact in environment if fact.differs()):
        num = len({value for values in one.values.values() for value in values})
        different.append(one.words if num <= _MOST_VALUES else f"{one.name} ({num} different values)")
    lines = {"all arms": shared, "not recorded by all arms": partial, "also different": different}
    return [f"{title}: {', '.join(words)}" for title, words in lines.items() if words]


def between(confounds: Sequence[Recorded], one: str, other: str) -> list[Recorded]:
    """Return the confounds whose values differ between the arms `one` and `other`."""
    return [confound for confound in confounds if confound.differs(one, other)]


def with_words(confounds: Sequence[Recorded], one: str, other: str) -> str:
    """Return a clause that names the confounds of two arms, or an empty text if there are none.

    An example is `, with learning rates 3e-4 and 1e-3,`.
    """
    quoted = [confound.quoted(one, other) for confound in between(confounds, one, other)]
    if not quoted:
        return ""
    listed = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
    return f", with {listed},"


def withheld_words(confounds: Sequence[Recorded], one: str, other: str) -> str:
    """Return a text that replaces the sentence for a paper if two arms have more than three confounds.

    The result is empty for up to three confounds, because the sentence can name them.
    """
    found = between(confounds, one, other)
    if len(found) <= MOST_QUOTED:
        return ""
    return (
        f"No sentence about {one} and {other} can be quoted: besides their methods they differ in "
        f"{len(found)} settings ({', '.join(confound.name for confound in found)}); compare runs that share "
        "these settings, or name the setting to compare with `--by KEY`."
    )


def _can_confound(key: str) -> bool:
    is_own = key.partition(".")[0] in SECTIONS
    return not is_own and key not in _SHOWN_BELOW and tells_methods_apart(key, at_last_step=True)


def _is_preset(key: str, arms: Sequence[Arm]) -> bool:
    """Return whether an arm's preset file sets the key and all runs of this arm kept the preset value.

    If the preset leaves the value open (`auto` or `???`), any value counts as kept.
    """
    for arm in arms:
        wanted = settings_outside(arm.settings.get("algorithm.name", "")).get(key)
        if wanted is not None and all(wanted in (run.get(key), *_LEFT_OPEN) for run in arm.all_settings):
            return True
    return False


def _follows(one: Recorded, found: Sequence[Recorded]) -> bool:
    """Return whether the difference in `one` follows from a difference in `found`.

    It does if `found` contains a section that includes the setting `one`. It also does if some run does not
    have this setting and `found` contains the `kind` of the setting's section.
    """
    is_partial = any(ABSENT in values for values in one.values.values())
    section = one.name.rpartition(".")[0]
    return any(
        one.name.startswith(f"{other.name}.") or (is_partial and other.name == f"{section}.kind")
        for other in found
    )


def _facts(arms: Sequence[Arm]) -> list[Recorded]:
    """Return the values of all `FACTS`, in their order."""
    records = {
        arm.name: [
            {
                "config": read_object(folder.config_file)[0],
                "provenance": read_object(folder.provenance_file)[0],
            }
            for folder in arm.runs.values()
        ]
        for arm in arms
    }
    found = []
    for fact in FACTS:
        texts = {name: [_fact_text(fact, one[fact.file]) for one in runs] for name, runs in records.items()}
        values = {name: _distinct(list(filter(None, own))) for name, own in texts.items()}
        found.append(Recorded(name=fact.name, values=values))
    return found


def _fact_text(fact: Fact, record: Mapping[str, object]) -> str:
    """Return the fact's value in a run's config or provenance file as text (empty if not recorded)."""
    value = setting(record, fact.key)
    if value is None or value in ([], {}, "auto"):
        return ""
    text = flattened_text({"": value})[""] if not isinstance(value, Mapping) else str(flattened_text(value))
    is_digest = fact.is_long or fact.key == "code.commit" or fact.key.endswith("_hash")
    if fact.is_long and text:
        text = hashlib.sha256(text.encode()).hexdigest()
    return text[:_DIGEST] if is_digest else text


def _distinct(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def common_sweep(folders: Sequence[RunFolder]) -> Mapping[str, object]:
    """Return the definition of the sweep that all of these runs belong to, or an empty mapping."""
    places = {folder.path.absolute().parent for folder in folders}
    if len(places) != 1:
        return {}
    place = places.pop()
    return mapping_at(read_object(place.parent / SWEEPS_DIR / place.name / "sweep.json")[0], "definition")


def _tuned(folders: Sequence[RunFolder]) -> frozenset[str]:
    """Return the settings that these runs' common sweep tuned.

    The result is empty for runs outside a sweep.
    """
    sweep = common_sweep(folders)
    sections = [mapping_at(one, kind) for one in (sweep, mapping_at(sweep, "baseline")) for kind in _TUNED]
    return frozenset(key for section in sections for key in section)


def _spoken(name: str) -> str:
    """Return a setting's name for a sentence, such as `learning rate` for optimizer.learning_rate."""
    parent, _, last = name.rpartition(".")
    if last in ("kind", "name", "source", "seed") and parent:
        return f"{parent.rpartition('.')[2]} {last}".replace("_", " ")
    return last.replace("_", " ")


def _plural(words: str) -> str:
    if words.startswith("num "):
        return f"numbers of {words.removeprefix('num ')}"
    if words.endswith("s"):
        return words
    if words.endswith("y") and words[-2:-1] not in "aeiou":
        return f"{words[:-1]}ies"
    return f"{words}es" if words.endswith(("x", "ch", "sh")) else f"{words}s"
