"""The offline interface."""

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
from asking import essence
from conftest import MakeLLM

from parlay import ConfigError, RequestError, RequestOutput, SamplingParams

PROMPT = list(range(40, 52)) * 2
PARAMS = SamplingParams(temperature=0.7, seed=3, max_tokens=12, logprobs=1)


def answer(output: RequestOutput) -> Any:
    return [essence(c) for c in output.outputs]


def test_one_prompt_in_every_form(make_llm: MakeLLM) -> None:
    llm = make_llm()
    text = llm.engine.codec.decode(PROMPT)
    assert llm.engine.codec.encode(text) == PROMPT
    forms = [PROMPT, tuple(PROMPT), [PROMPT], {"prompt_token_ids": PROMPT}, [{"prompt_token_ids": PROMPT}]]
    forms += [text, [text], {"prompt": text}]
    outputs = [llm.generate(form, PARAMS) for form in forms]
    assert all(len(output) == 1 for output in outputs)
    assert all(answer(output[0]) == answer(outputs[0][0]) for output in outputs)
    assert all(output[0].prompt_token_ids == tuple(PROMPT) for output in outputs)
    assert [output[0].prompt for output in outputs] == [None] * 5 + [text] * 3


def test_many_prompts_keep_their_order(make_llm: MakeLLM) -> None:
    prompts = [PROMPT[:n] for n in (20, 1, 7)]
    lengths = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 9, 4)]
    outputs = make_llm("draft_model", 2).generate(prompts, lengths)
    assert [list(o.prompt_token_ids) for o in outputs] == prompts
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 9, 4]
    assert len({o.request_id for o in outputs}) == 3
    assert all(o.finished and o.error is None for o in outputs)


def test_nothing_in_nothing_out(make_llm: MakeLLM) -> None:
    assert make_llm().generate([]) == []


def test_several_completions(make_llm: MakeLLM) -> None:
    output = make_llm("ngram", 3).generate(PROMPT, SamplingParams(n=3, seed=1, max_tokens=5, temperature=1.0))[0]
    assert [c.index for c in output.outputs] == [0, 1, 2]
    assert output.metrics == output.outputs[0].metrics


@pytest.mark.parametrize("method", [None, "ngram", "draft_model"])
def test_a_bad_request_costs_the_others_nothing(make_llm: MakeLLM, method: str | None) -> None:
    prompts: list[Any] = [PROMPT, [], PROMPT[:5], [999], [1] * 400, "", {"text": "x"}, PROMPT[:9]]
    outputs = make_llm(method, 3).generate(prompts, PARAMS)
    assert len(outputs) == len(prompts)
    bad = {1, 3, 4, 5, 6}
    for i, output in enumerate(outputs):
        if i in bad:
            assert isinstance(output.error, RequestError)
            assert output.outputs == ()
            assert output.metrics.emitted == 0
        else:
            assert output.error is None
            assert answer(output) == answer(make_llm().generate(prompts[i], PARAMS)[0])


def test_the_only_request_raises(make_llm: MakeLLM) -> None:
    llm = make_llm()
    bad: list[Any] = ["", [[]], [999], {"text": "x"}, {"prompt": "x", "more": 1}, {"prompt": 3}, {}, b"x", [b"x"]]
    for prompt in bad:
        with pytest.raises(RequestError):
            llm.generate(prompt, PARAMS)


def test_a_seed_of_minus_one_is_none(make_llm: MakeLLM) -> None:
    assert SamplingParams(seed=-1) == SamplingParams()
    params = SamplingParams(seed=-1, max_tokens=12, ignore_eos=True)
    first, second = make_llm().generate(["abc", "abc"], params, use_tqdm=False)
    assert first.outputs[0].token_ids != second.outputs[0].token_ids


def test_a_refused_mapping_does_not_shift_the_seeds_of_others(make_llm: MakeLLM) -> None:
    free = SamplingParams(temperature=1.0, max_tokens=8)
    good = make_llm().generate([PROMPT, PROMPT, PROMPT], free)
    mixed = make_llm().generate([PROMPT, {"text": "x"}, PROMPT], free)
    assert answer(mixed[2]) == answer(good[2])


def test_as_many_parameters_as_prompts(make_llm: MakeLLM) -> None:
    with pytest.raises(ConfigError, match="2 prompts but 3"):
        make_llm().generate([PROMPT, PROMPT], [PARAMS] * 3)


def test_default_parameters(make_llm: MakeLLM) -> None:
    assert len(make_llm().generate(PROMPT)[0].outputs[0].token_ids) <= SamplingParams().max_tokens


@pytest.mark.parametrize("method", [None, "ngram", "draft_model"])
@pytest.mark.parametrize("stop", [(), ("!", '"'), ("never seen",)])
def test_stream(make_llm: MakeLLM, method: str | None, stop: tuple[str, ...]) -> None:
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=30, n=2, logprobs=0, stop=stop)
    llm = make_llm(method, 4)
    whole = llm.generate(PROMPT, params)[0]
    partial = list(llm.stream(PROMPT, params))
    assert partial[-1].finished
    assert not any(output.finished for output in partial[:-1])
    assert answer(partial[-1]) == answer(whole)
    for before, after in pairwise(partial):
        for a, b in zip(before.outputs, after.outputs, strict=True):
            assert b.token_ids[: len(a.token_ids)] == a.token_ids
            assert b.text.startswith(a.text), "text that was streamed is never taken back"
            assert len(a.logprobs) == len(a.token_ids)
        assert sum(len(c.token_ids) for c in after.outputs) > sum(len(c.token_ids) for c in before.outputs)
    steps = max(len(partial), 1)
    assert steps <= sum(c.metrics.steps for c in whole.outputs)


def test_streams_take_turns(make_llm: MakeLLM) -> None:
    """A step serves every request, so a stream may find its work done by another's steps."""
    llm = make_llm("ngram", 3)
    first, second = llm.stream(PROMPT, PARAMS), llm.stream(PROMPT[:3], PARAMS)
    next(first)
    *_, last_of_second = second
    *_, last_of_first = first
    for output, prompt in ((last_of_first, PROMPT), (last_of_second, PROMPT[:3])):
        assert output.finished
        assert answer(output) == answer(llm.generate(prompt, PARAMS)[0])


def test_a_stream_that_is_dropped_leaves_nothing(make_llm: MakeLLM) -> None:
    llm = make_llm("draft_model", 3)
    stream = llm.stream(PROMPT, PARAMS)
    next(stream)
    assert llm.engine.busy
    stream.close()
    assert not llm.engine.busy


def test_an_interrupted_call_leaves_nothing(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm("ngram", 3)
    step, left = llm.engine.step, iter(range(3))

    def interrupted() -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([PROMPT, PROMPT], PARAMS)
    monkeypatch.undo()
    assert not llm.engine.busy
    assert len(llm.generate(PROMPT, PARAMS)[0].outputs[0].token_ids) == 12


def test_chat(make_llm: MakeLLM) -> None:
    llm = make_llm()
    hello = [{"role": "user", "content": "hi"}]
    [output] = llm.chat(hello, PARAMS)
    assert output.prompt == "user: hi\nassistant:"
    assert answer(output) == answer(llm.generate(output.prompt, PARAMS)[0])
    assert len(llm.chat([hello, hello], PARAMS)) == 2


def test_a_bad_conversation_costs_the_others_nothing(make_llm: MakeLLM) -> None:
    hello, hollow = ([{"role": "user", "content": content}] for content in ("hi", 3))
    free = SamplingParams(temperature=1.0, max_tokens=6)
    plain, strict = make_llm(), make_llm()
    strict.engine.codec._template = "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}assistant:"
    good = plain.chat([hello, hello, hello], free)
    mixed = strict.chat([hello, hollow, hello], free)
    assert isinstance(mixed[1].error, RequestError)
    assert answer(mixed[0]) == answer(good[0])
    assert answer(mixed[2]) == answer(good[2]), "nor does it shift their seeds"


def test_progress_goes_to_stderr(make_llm: MakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm = make_llm()
    llm.generate([PROMPT] * 2, PARAMS, use_tqdm=True)
    llm.generate([PROMPT] * 2, PARAMS)
    assert capsys.readouterr().out == ""


def test_each_request_speculates_as_it_likes(make_llm: MakeLLM) -> None:
    """Off, at most k, by name: in one batch, with the same tokens."""
    for method in ("ngram", "draft_model"):
        llm = make_llm(method, 4)
        wishes: list[Any] = [None, {"enabled": False}, {"method": "none"}, {"num_speculative_tokens": 1}]
        wishes += [{"method": method}, {"method": method, "num_speculative_tokens": 2}]
        params = [dataclasses.replace(PARAMS, max_tokens=24, speculative=wish) for wish in wishes]
        free, off, none, one, named, two = llm.generate([PROMPT] * len(wishes), params)
        assert len({str(answer(output)) for output in (free, off, none, one, named, two)}) == 1
        assert off.metrics.drafted == none.metrics.drafted == 0
        assert free.metrics.drafted > 0
        assert len(one.metrics.accepted_per_position) <= 1 < len(named.metrics.accepted_per_position)
        assert len(two.metrics.accepted_per_position) <= 2
        assert 0 < one.metrics.drafted == one.metrics.drafts
        assert two.metrics.drafted <= 2 * two.metrics.drafts


def test_a_method_that_is_not_loaded(make_llm: MakeLLM) -> None:
    llm = make_llm("ngram", 3)
    asked = dataclasses.replace(PARAMS, speculative={"method": "ngrm"})
    with pytest.raises(
        RequestError, match=r"'ngrm' is not loaded .did you mean 'ngram'\?.; name it in speculative_config"
    ):
        llm.generate(PROMPT, asked)
    with pytest.raises(RequestError, match="'draft_model' is not loaded"):
        make_llm().generate(PROMPT, dataclasses.replace(PARAMS, speculative={"method": "draft_model"}))
    good, bad = llm.generate([PROMPT, PROMPT], [PARAMS, asked])
    assert isinstance(bad.error, RequestError)
    assert answer(good) == answer(make_llm().generate(PROMPT, PARAMS)[0])


def test_a_request_may_name_what_the_engine_does_of_itself(make_llm: MakeLLM) -> None:
    asked = dataclasses.replace(PARAMS, speculative={"method": "auto"})
    automatic = make_llm("auto")
    assert answer(automatic.generate(PROMPT, asked)[0]) == answer(automatic.generate(PROMPT, PARAMS)[0])
    with pytest.raises(RequestError, match="'auto' is not loaded"):
        make_llm("ngram", 3).generate(PROMPT, asked)
