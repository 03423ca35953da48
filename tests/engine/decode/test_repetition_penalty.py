"""What depends on the tokens before, as a part of the distribution, exact whatever was proposed: the repetition penalty
(transformers' own), the presence penalty and quotations that hold the book's words alone."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import Mode, SamplingParams
from engine.decode import rounds
from engine.decode.acceptance import Never
from engine.decode.drafters import LookupDrafter
from engine.decode.lookup import LookupIndex
from engine.decode.plans import PLAIN, DraftPlan
from engine.decode.quotations import Quotable
from engine.decode.rounds import Context, Speculation
from engine.decode.verify import Sampler, make_generator, make_sampler
from engine.document import Document
from engine.events import AnswerDone, Round
from engine.prompt import Question
from tests.engine.decode.test_paths import CPU, LONG, SHORT, VOCABULARY, AnyPlan, Cache, Chain, Draft, table
from tests.engine.dense import dense
from tests.engine.test_equality import TOKENS, answer, load, read, without_end

PENALISED = SamplingParams(temperature=0.7, top_k=5, top_p=0.95, repetition_penalty=1.8, presence_penalty=0.4)


def transformers_law(scores: torch.Tensor, ids: list[int], ignored: int, params: Any) -> torch.Tensor:
    """The distribution (vocabulary,) of the next token, by the processors of transformers in their order there."""
    from transformers import (
        LogitsProcessor,
        LogitsProcessorList,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    class Presence(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            said = torch.zeros_like(scores).index_fill_(1, input_ids[0, ignored:], params.presence_penalty or 0.0)
            return scores - said

    steps: Any = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(params.repetition_penalty or 1.0, prompt_ignore_length=ignored),
            Presence(),
            TemperatureLogitsWarper(params.temperature),
            TopKLogitsWarper(params.top_k),
            TopPLogitsWarper(params.top_p),
        ]
    )
    return torch.softmax(steps(torch.tensor([ids]), scores.unsqueeze(0)), dim=-1)[0]


@pytest.mark.parametrize(("penalty", "presence"), [(1.3, None), (0.7, 0.5), (None, 1.5), (1.2, -2.0)])
def test_every_row_is_the_law_of_transformers_behind_the_tokens_before_it(
    penalty: float | None, presence: float | None
) -> None:
    params = SamplingParams(temperature=0.7, top_k=9, top_p=0.9, repetition_penalty=penalty, presence_penalty=presence)
    logits = 2.0 * torch.randn(6, 24, generator=torch.Generator().manual_seed(1))
    likely = logits.topk(3).indices
    prompt, said = [0, 1, 2, 3, int(likely[0, 0])], [int(likely[0, 1]), int(likely[1, 0]), 4]
    proposed = [int(likely[2, 0]), 4, int(likely[3, 0]), int(likely[3, 0]), int(likely[5, 0])]
    sampler = make_sampler(params, torch.tensor(said[:2])).after(torch.tensor(said[2:]))
    rows = dense(sampler(logits, torch.tensor(proposed)), 24)
    for row, (found, scores) in enumerate(zip(rows, logits, strict=True)):
        before = [*prompt, *said, *proposed[:row]]
        assert torch.allclose(found, transformers_law(scores, before, len(prompt), params), atol=1e-6), row
    alone = dense(sampler(logits[:1]), 24)
    assert torch.equal(alone, rows[:1])
    assert not torch.allclose(rows, dense(Sampler(params)(logits), 24), atol=0.01), "without its text it is another law"


def test_penalties_without_effect_keep_nothing() -> None:
    without = SamplingParams(temperature=1.0, repetition_penalty=1.0, presence_penalty=0.0)
    sampler = make_sampler(without, torch.tensor([3]))
    assert not sampler.remembers
    assert sampler.after(torch.tensor([4])) is sampler


@pytest.mark.parametrize("factor", [1.5, 0.8])
def test_greedy_text_is_that_of_generate(factor: float, tiny: Callable[..., str], book: Document) -> None:
    from transformers import AutoModelForCausalLM, LogitsProcessorList, RepetitionPenaltyLogitsProcessor

    target = tiny("llama", spread=0.1)
    given = {"num_draft_tokens": 2, "num_pending_tokens": 6}  # a controller may find that nothing pays on so small one
    session = load(target, tiny("llama", seed=1, layers=1, width=32), **given)
    read(session, book)
    without_end(session)
    plain, fast = answer(session, "plain", repetition_penalty=factor), answer(session, repetition_penalty=factor)
    assert session.conversation is not None
    prompt = session.conversation.tokens[: plain.figures.prompt_tokens]
    model: Any = AutoModelForCausalLM.from_pretrained(target, attn_implementation="eager", dtype=torch.float32)
    ids = torch.tensor([prompt])
    penalty = RepetitionPenaltyLogitsProcessor(factor, prompt_ignore_length=len(prompt))
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=TOKENS,
        do_sample=False,
        eos_token_id=None,
        logits_processor=LogitsProcessorList([penalty]),
    )
    assert list(plain.token_ids) == out[0, len(prompt) :].tolist()
    assert plain.token_ids == fast.token_ids != answer(session).token_ids
    assert fast.figures.rounds < TOKENS, "some of it came in bursts"

    # An answer that goes on counts what there is of it.
    def said(length: int, mode: Mode = "hierarchical", begun: str = "") -> AnswerDone:
        *_, done = session.ask(
            Question("Where?", (), SamplingParams(max_tokens=length, repetition_penalty=factor), mode, begun)
        )
        assert isinstance(done, AnswerDone)
        return done

    cut = said(12)
    assert (*cut.token_ids, *said(20, begun=cut.text).token_ids) == said(32, "plain").token_ids


def test_a_model_is_sampled_as_its_own_settings_say(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    """Unless the person says otherwise."""
    folder = Path(shutil.copytree(tiny("llama", spread=0.1), tmp_path / "own"))
    settings = {"do_sample": True, "temperature": 0.9, "top_k": 40, "repetition_penalty": 1.5}
    (folder / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    session = load(str(folder), None)
    read(session, book)
    without_end(session)
    assert session.target.sampling == SamplingParams(temperature=0.9, top_k=40, repetition_penalty=1.5)
    as_it_says = answer(session, "plain", seed=7).token_ids
    named: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "top_p": 1.0, "repetition_penalty": 1.5}
    assert as_it_says == answer(session, "plain", seed=7, **named).token_ids
    assert as_it_says != answer(session, "plain", seed=7, **{**named, "repetition_penalty": 1.0}).token_ids
    assert answer(session, "plain", temperature=0.0).token_ids != as_it_says


PLANS = [
    DraftPlan(copy=2),
    DraftPlan(3, draft_stop=LONG),
    DraftPlan(2, 2, 3),
    DraftPlan(0, 2, middle_stop=SHORT),
    DraftPlan(3, 2, draft_stop=SHORT, middle_stop=LONG),
    PLAIN,
]


NOTHING = torch.tensor([], dtype=torch.long)


def context_of(
    chain: Chain, prompt: list[int], generator: torch.Generator, length: int, sampler: Sampler | None = None
) -> Context:
    sampler, full = sampler or make_sampler(PENALISED, NOTHING), Cache("full", len(prompt) - 1)
    return Context(chain, full, list(prompt), sampler, generator, frozenset(), length)  # type: ignore[arg-type]


def made(context: Context, policy: AnyPlan, index: LookupIndex, copied: int) -> list[Round]:
    known = len(context.tokens) - 1
    drafter = LookupDrafter(Draft(context.backend, known), index, copied, CPU)  # type: ignore[arg-type]
    retrieval: Any = Cache("retrieval", known)
    return list(rounds.hierarchical(context, retrieval, drafter, Speculation(policy, Never(), 100, index)))


@pytest.mark.parametrize("plan", [DraftPlan(3), DraftPlan(2, 2, 8)], ids=["draft", "hierarchy"])
def test_levels_of_one_law_agree_about_everything(plan: DraftPlan) -> None:
    """So each of them counts the committed, the pending and the proposed tokens before a row, and no others."""
    chain = Chain(dict.fromkeys(("full", "retrieval", "draft"), table(2)))
    generator, length = make_generator(3, CPU), 9  # before every token has come: then nothing depends on the row
    for _ in range(20):
        done = made(context_of(chain, [0, 1, 2], generator, length), AnyPlan([plan]), LookupIndex(), 0)
        assert [each.verify.accepted for each in done] == [each.verify.proposed for each in done]
        assert [each.middle.accepted for each in done] == [each.middle.proposed for each in done]
        assert len(done) <= 3


# A law by its first sampler, and by its definition: the distribution of the next token behind a prompt and an answer.
Law = tuple[Sampler, Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]]


def penalised() -> Law:
    def law(scores: torch.Tensor, prompt: list[int], said: list[int]) -> torch.Tensor:
        return transformers_law(scores, [*prompt, *said], len(prompt), PENALISED)

    return make_sampler(PENALISED, NOTHING), law


def quoting() -> Law:
    """Four words and two marks. What may follow is written down here for every beginning."""
    pieces = [b"one", b" two", b" three", b' "', b'"', b" four"]
    book = Quotable("one two three one four two", pieces)
    after = {
        "": {0}, "one": {1, 3, 4, 5}, "one two": {2, 3, 4}, "one four": {1, 3, 4},
    }  # fmt: skip

    def law(scores: torch.Tensor, prompt: list[int], said: list[int]) -> torch.Tensor:
        text = " " + b"".join(pieces[token] for token in said).decode()  # an answer may begin with a quotation
        inside = re.sub(r'\s"[^"]*"', "", text).partition(' "')
        # "one" stands without a space, so that it can come behind a mark alone, as others can behind spaces alone.
        allowed = after[inside[2].strip()] if inside[1] else set(range(VOCABULARY))
        hidden = torch.tensor([token not in allowed for token in range(VOCABULARY)])
        return torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)

    return Sampler(SamplingParams(temperature=1.0), None, book.begin([])), law


@pytest.mark.parametrize("make", [penalised, quoting])
def test_every_path_keeps_the_law_of_whole_answers(make: Callable[[], Law]) -> None:
    """The law of the first tokens of an answer by enumeration, against answers made on every path of a round."""
    sampler, law_of = make()
    length, answers = 3, 1_500
    chain = Chain({"full": table(2), "retrieval": table(3), "draft": table(4)})
    first = int(chain.tables["full"][3].argmax())
    prompt = [0, 1, 2, 3, first, first, 0, 1, 2, 3]  # what came before here is worth copying, and its second half not
    index, policy = LookupIndex(), AnyPlan(PLANS)
    counts: Counter[tuple[int, ...]] = Counter()
    generator = make_generator(11, CPU)
    for _ in range(answers):
        index.follow(prompt)
        context = context_of(chain, prompt, generator, length, sampler)
        made(context, policy, index, 8)
        counts[tuple(context.tokens[len(prompt) :])] += 1

    laws: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for said, chance in laws.items():
            law = law_of(chain.tables["full"][[*prompt, *said][-1]], prompt, list(said))
            longer |= {(*said, token): chance * float(law[token]) for token in range(VOCABULARY)}
        laws = {said: chance for said, chance in longer.items() if chance > 0}
    assert sum(laws.values()) == pytest.approx(1.0, abs=1e-5)
    assert set(counts) <= set(laws)
    for text, chance in laws.items():
        allowed = 5.0 * (chance * (1 - chance) / answers) ** 0.5 + 2e-4
        assert abs(counts[text] / answers - chance) < allowed, text
    assert {"draft", "lookup", "middle", "target"} <= set(policy.taken)
    assert min(policy.taken.values()) > 100
