"""Stored completions: what files may hold, what they become, and what the engine that reads them promises.

Of the contract of engines the bank keeps what can be kept by text that exists already. It does not sample
by seed, cannot ignore the stop token, and gives stored completions a weight version of their own.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.engines import test_engine_contract as contract
from tests.engines.conftest import (
    CHARACTERS,
    CONTEXT_LENGTH,
    STOPS,
    VOCABULARY,
    generate,
    requests_for,
    transformers_engine,
)

from atrium.base.errors import DataError, EngineError
from atrium.base.records import (
    STORED_VERSION,
    Completion,
    FinishReason,
    Problem,
    Rollout,
    RolloutGroup,
    Verdict,
    VerdictKind,
)
from atrium.engines.bank_engine import BankEngine
from atrium.engines.completion_bank import Vocabulary, build_bank
from atrium.engines.engine import SamplingParams
from atrium.engines.stored_rollouts import read_stored, stored_files
from atrium.runs.sample_files import write_rollouts

PROBLEMS = tuple(
    Problem(problem_id=f"p{number}", question=text, answer="5")
    for number, text in enumerate(dict.fromkeys(contract.TEXTS))
)
SAMPLING = SamplingParams(max_new_tokens=16)


def encoded(tokenizer, text):
    return np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)


def vocabulary_of(tokenizer):
    return Vocabulary(
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
        stop_token_ids=STOPS,
        num_tokens=len(VOCABULARY),
        unknown_token_id=VOCABULARY["<unk>"],
    )


def random_rows(seed=0, *, num=24, with_tokens=True):
    """`num` completions of every problem, some of which were cut off at 16 tokens."""
    rng = np.random.default_rng(seed)
    rows = []
    for problem in PROBLEMS:
        for number in range(num):
            is_cut = number % 3 == 0
            text = "".join(rng.choice(CHARACTERS, 16 if is_cut else int(rng.integers(0, 15))))
            ids = [VOCABULARY[character] for character in text] + ([] if is_cut else [STOPS[0]])
            row = {
                "prompt": problem.question,
                "completion": text,
                "reward": float(number),
                "logprobs": (-rng.exponential(1.0, len(ids))).tolist(),
                "finish_reason": "length" if is_cut else "stop",
            }
            rows.append({**row, "token_ids": ids} if with_tokens else row)
    return rows


def write(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def bank_of(path, tokenizer, *, num_needed=3, max_new_tokens=16, problems=PROBLEMS):
    return build_bank(
        read_stored(stored_files(path), problems),
        vocabulary_of(tokenizer),
        encode_prompt=lambda problem: encoded(tokenizer, problem.question),
        max_new_tokens=max_new_tokens,
        num_needed=num_needed,
    )


@pytest.fixture(params=[1.0, 1 / 3], ids=["all_stored", "a_third_stored"])
def engine(request, tmp_path, policy):
    bank = bank_of(write(tmp_path / "bank.parquet", random_rows()), policy.tokenizer)
    live = transformers_engine(policy)
    return BankEngine(bank, live, stored_frac=request.param, context_length=CONTEXT_LENGTH)


KEPT = [
    contract.test_every_seed_of_every_request_is_answered_once,
    contract.test_a_request_without_seeds_has_no_completions,
    contract.test_repeating_a_generation_repeats_it_bit_for_bit,
]


@pytest.mark.parametrize("promise", KEPT, ids=lambda promise: promise.__name__)
def test_the_bank_keeps_this_part_of_the_contract(promise, engine, tokenizer):
    promise(engine, tokenizer)


def test_the_bank_refuses_what_every_engine_refuses(engine, tokenizer):
    contract.test_no_requests_give_nothing(engine)
    contract.test_an_empty_prompt_is_refused(engine)
    with pytest.raises(EngineError, match=r"request 1 has 145 tokens.*max_new_tokens=16"):
        engine.generate(requests_for(["1+2=", "1+" * 72 + "1"], tokenizer), SAMPLING)
    with pytest.raises(EngineError, match="ignore_stop"):
        engine.generate([], SamplingParams(max_new_tokens=3, ignore_stop=True))


def test_a_completion_ends_with_its_stop_token_or_was_cut_off(engine, tokenizer):
    ends = set()
    for completion in sum(generate(engine, requests_for(contract.TEXTS, tokenizer, 9), SAMPLING), ()):
        *body, last = completion.token_ids.tolist()
        stopped = last in STOPS
        assert completion.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        kept = body if stopped else [*body, last]
        assert completion.text == tokenizer.decode(kept, skip_special_tokens=True)
        ends.add(completion.finish_reason)
    assert ends == set(FinishReason)


def test_a_group_is_drawn_without_replacement_and_stored_groups_stay_whole(tmp_path, policy):
    bank = bank_of(write(tmp_path / "bank.parquet", random_rows(num=8)), policy.tokenizer)
    engine = BankEngine(bank, transformers_engine(policy), stored_frac=1.0, context_length=CONTEXT_LENGTH)
    requests = requests_for(["1+2=", "7"], policy.tokenizer, group_size=8)
    for completions in generate(engine, requests, SAMPLING):
        assert sorted(completion.stored_reward for completion in completions) == [*map(float, range(8))]
    part = requests_for(["1+2="], policy.tokenizer, group_size=3)
    drawn = {c.stored_reward for c in generate(engine, part, SAMPLING)[0]}
    assert len(drawn) == 3


def test_the_rest_of_a_group_is_what_the_live_engine_samples_for_its_seeds(tmp_path, policy):
    bank = bank_of(write(tmp_path / "bank.parquet", random_rows()), policy.tokenizer)
    live = transformers_engine(policy)
    engine = BankEngine(bank, live, stored_frac=0.5, context_length=CONTEXT_LENGTH)
    live.update_weights(policy.model.state_dict(), 4)
    requests = requests_for(["7", "3+4-5+6="], policy.tokenizer, group_size=4)
    mixed, alone = generate(engine, requests, SAMPLING), generate(live, requests, SAMPLING)
    for some, sampled in zip(mixed, alone, strict=True):
        assert [completion.is_stored for completion in some] == [True, True, False, False]
        assert [completion.weight_version for completion in some] == [STORED_VERSION, STORED_VERSION, 4, 4]
        contract.assert_equal(some[2:], sampled[2:])


def test_what_a_run_recorded_is_read_back_as_it_was(tmp_path, policy):
    live = transformers_engine(policy)
    requests = requests_for([problem.question for problem in PROBLEMS], policy.tokenizer, group_size=4)
    sampled = generate(live, requests, SAMPLING)
    verdict = Verdict(kind=VerdictKind.INCORRECT, reason="")
    groups = [
        RolloutGroup(
            problem=problem,
            prompt_token_ids=request.prompt_token_ids,
            rollouts=tuple(
                Rollout(sample_index=place, completion=completion, verdict=verdict, reward=0.5 * place)
                for place, completion in enumerate(completions)
            ),
        )
        for problem, request, completions in zip(PROBLEMS, requests, sampled, strict=True)
    ]
    for step, part in ((1, groups[:2]), (20, groups[2:])):
        write_rollouts(tmp_path / f"step-{step:06d}.parquet", step, part, ())
    bank = bank_of(tmp_path, policy.tokenizer, num_needed=4)
    for request, completions in zip(requests, sampled, strict=True):
        stored = bank[tuple(request.prompt_token_ids.tolist())]
        contract.assert_equal(stored, completions)
        for one, other in zip(stored, completions, strict=True):
            assert one.logprobs.tobytes() == other.logprobs.tobytes()
            assert one.is_stored
            assert not other.is_stored
        assert [one.stored_reward for one in stored] == [0.0, 0.5, 1.0, 1.5]


def test_text_alone_is_encoded_and_ended_and_its_log_probabilities_are_unknown(tmp_path, tokenizer):
    rows = [{"prompt": " 7 ", "completion": "4+3"}, {"prompt": "7", "completion": ""}]
    bank = bank_of(write(tmp_path / "text.parquet", rows), tokenizer, num_needed=2)
    one, other = bank[tuple(encoded(tokenizer, "7").tolist())]
    assert one.token_ids.tolist() == [*encoded(tokenizer, "4+3").tolist(), STOPS[0]]
    assert np.isnan(one.logprobs).all()
    assert one.stored_reward is None
    assert other.token_ids.tolist() == [STOPS[0]]
    assert isinstance(other, Completion)


def _one(**changes):
    row = {"prompt": "7", "completion": "4+3", "reward": 1.0, **changes}
    return [{name: value for name, value in row.items() if value is not ...}]


WRONG = {
    "no_rows": ([], "contains no completions"),
    "no_completion_column": (
        _one(completion=...),
        r"columns are missing: completion .*the file has prompt, reward",
    ),
    "no_prompt_column": (_one(prompt=...), r"columns are missing: prompt \(or question, or problem_id\)"),
    "unknown_question": (
        _one(prompt="8"),
        r"row 1 of .* answers '8', which is not among the 6 training problems",
    ),
    "unknown_id": (_one(problem_id="p10"), r"answers 'p10', which is not among .*the nearest is 'p[01]'"),
    "id_of_another_question": (
        _one(problem_id="p0"),
        "question is '1\\+2=', but the row has the question '7'",
    ),
    "no_text": (_one(completion=None), "has no completion"),
    "text_as_numbers": (_one(completion=7), "column completion must contain text, got int64"),
    "question_as_a_list": (_one(prompt=["7"]), "column prompt must contain text"),
    "reward_as_text": (_one(reward="high"), "column reward must contain numbers, got string"),
    "tokens_as_text": (
        _one(token_ids="8 14"),
        "column token_ids must contain lists of whole numbers, got string",
    ),
    "null_among_tokens": (_one(token_ids=[8, None]), "row 1 of .*token_ids must be whole numbers, got null"),
    "fractions_of_tokens": (
        _one(token_ids=[8.5]),
        "column token_ids must contain lists of whole numbers, got list<",
    ),
    "logprobs_as_mappings": (
        _one(logprobs=[{"a": 1}]),
        "column logprobs must contain lists of numbers, got list<",
    ),
    "strange_end": (_one(finish_reason="tired"), "finish_reason 'tired', expected stop or length"),
    "endless_reward": (_one(reward=float("inf")), "has the reward inf"),
    "positive_logprob": (
        _one(logprobs=[0.5, -1.0, -1.0, -1.0]),
        "log-probability 0.5, but log-probabilities must be at most 0",
    ),
    "impossible_logprob": (_one(logprobs=[float("-inf")] * 4), "-inf"),
    "text_without_tokens": (_one(completion="4×3"), "the policy's tokenizer cannot encode"),
    "too_few_logprobs": (
        _one(logprobs=[-1.0] * 3),
        "3 log-probabilities, but the policy's tokenizer gives 4 tokens",
    ),
    "ids_of_another_vocabulary": (_one(token_ids=[5, 4000, 1]), "token id 4000, but .* has ids from 0 to 34"),
    "ids_without_the_stop": (
        _one(token_ids=[8, 14, 7]),
        "finish_reason stop, but does not end with a stop token",
    ),
    "ids_of_other_text": (_one(token_ids=[8, 14, 8, 1]), "do not decode to its text"),
    "nothing_at_all": (_one(completion="", finish_reason="length"), "has no tokens"),
    "too_long": (_one(completion="1" * 16), r"rollout.max_new_tokens must be at least 17, .* got 16"),
    "too_few": (_one(), r"a group needs 3 stored .* 1 of 1 problems have fewer.*'p1', .*rollout.stored_frac"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path, tokenizer, case):
    rows, message = WRONG[case]
    path = tmp_path / "wrong.parquet"
    if rows:
        write(path, rows)
    else:
        pq.write_table(
            pa.table({"prompt": pa.array([], pa.string()), "text": pa.array([], pa.string())}), path
        )
    with pytest.raises(DataError, match=message) as caught:
        bank_of(path, tokenizer)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none_and_a_folder_without_files_are_said(tmp_path):
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match=r"damaged\.parquet is not a valid Parquet file"):
        read_stored([damaged], PROBLEMS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="there are no Parquet files"):
        stored_files(tmp_path / "empty")


def test_the_engine_says_when_too_little_is_stored_or_a_stored_completion_is_too_long(tmp_path, policy):
    bank = bank_of(write(tmp_path / "bank.parquet", random_rows(num=3)), policy.tokenizer)
    engine = BankEngine(bank, transformers_engine(policy), stored_frac=1.0, context_length=CONTEXT_LENGTH)
    with pytest.raises(EngineError, match=r"3 stored completions, but a group needs 4"):
        engine.generate(requests_for(["7"], policy.tokenizer, group_size=4), SAMPLING)
    with pytest.raises(EngineError, match=r"max_new_tokens must be at least 16, .* got 9"):
        engine.generate(requests_for(["7"], policy.tokenizer), SamplingParams(max_new_tokens=9))
