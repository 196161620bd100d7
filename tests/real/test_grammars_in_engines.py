"""Engines over small random models with real tokenizers: enforced calls, a text that is forced
whole, and an answer after reasoning, alone and in one batch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.startup.build import build_engine
from quire.models.config import ModelDtype
from quire.scheduler.reasons import Reason
from quire.scheduler.request import (
    NewRequest,
    ReasoningTags,
    Sampling,
    Stopping,
    ThinkingBudget,
)
from quire.server.grammars.compose import compose
from quire.server.grammars.tool_calls import ToolUse, tool_calls
from quire.server.grammars.tool_schemas import CallableTool
from quire.server.parsers.formats import ReasoningFormatName, ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from quire.server.text.detokenizer import Detokenizer
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer
from tests.long import rest_is_long
from tests.real.models import real_folder
from tests.real.random_model import write_random_model
from tests.real.test_grammars import IN_EVERY_RUN, NAMES
from tests.server.parsers.outputs import Read, read

MAX_TOKENS = 200
THINK = ReasoningFormatName.think.value
HERMES = ToolFormatName.hermes.value
CALLED = ParserOptions(HERMES, {"find": {}})
REASONED = ParserOptions(reasoning=THINK, in_reasoning=True)


class Served:
    """An engine over a random model with the tokenizer of `folder`."""

    def __init__(self, folder: Path, into: Path) -> None:
        self.text: TextTokenizer = load_tokenizer(str(folder), None)
        self.end_id = write_random_model(folder, into, max_len=512)
        self.engine: Engine = build_engine(
            EngineConfig(
                ModelConfig(str(into), device="cpu", dtype=ModelDtype.FLOAT32),
                MemoryConfig(block_size=8, kv_cache_tokens=2048),
                SchedulingConfig(max_model_len=MAX_TOKENS + 50, max_num_seqs=4),
            ),
            on_progress=lambda *_: None,
            clock=lambda: 0.0,
        )[0]

    def request(self, name: str, grammar: str, budget: ThinkingBudget | None = None) -> NewRequest:
        prompt = self.text.encode("Hello", add_special_tokens=True)
        tags = None if budget is None else ReasoningTags("", THINK.closes)
        sampling = Sampling(seed=1, grammar=grammar, reasoning_tags=tags, thinking_budget=budget)
        return NewRequest(
            name, prompt, sampling, Stopping(MAX_TOKENS, eos_token_ids=(self.end_id,))
        )

    def requests(self) -> list[NewRequest]:
        specials = self.text.special_tokens
        city = {"type": "string", "const": "<h1>Rome</h1>"}
        schema: dict[str, object] = {"properties": {"city": city}, "required": ["city"]}
        tool = CallableTool("find", schema, "tools[0].function", "tools[0].function.parameters")
        calls = tool_calls(HERMES, ToolUse([tool], True, False), specials)
        answer = compose('body: "yes<h1>"', THINK, prompt=THINK.opens, special_tokens=specials)
        opens, closes = (
            self.text.encode(tag, add_special_tokens=False) for tag in (THINK.opens, THINK.closes)
        )
        return [
            self.request("call", compose(calls, None, prompt="", special_tokens=specials)),
            self.request("text", 'start: "<tool_call>a▁b<|im_end|></s>"'),
            self.request("answer", answer, ThinkingBudget(4, opens, closes, is_open=True)),
        ]

    def run(self, requests: list[NewRequest]) -> dict[str, tuple[int, ...]]:
        """The tokens of each output, all of which end as their grammars do."""
        tokens: dict[str, tuple[int, ...]] = {each.id: () for each in requests}
        for each in requests:
            assert self.engine.submit(each) is None
        while self.engine.has_work:
            for delta in self.engine.step().deltas:
                tokens[delta.request_id] += delta.token_ids
                finish = delta.finish
                assert finish is None or finish.reason is Reason.END_OF_SEQUENCE
        return tokens

    def read(self, token_ids: tuple[int, ...], options: ParserOptions) -> Read:
        """An output as it is streamed, which is read as the whole is."""
        detokenizer = Detokenizer(
            self.text.token_bytes, skip_special_tokens=True, at_start=False, shown=options.tags
        )
        pieces = [*map(detokenizer.feed, token_ids[:-1]), detokenizer.flush()]
        output = read(pieces, options)
        assert output == read(["".join(pieces)], options)
        return output


@pytest.fixture(scope="module", params=rest_is_long(IN_EVERY_RUN, NAMES))
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = real_folder(f"tokenizers/{request.param}")
    made = Served(folder, tmp_path_factory.mktemp(request.param))
    yield made
    made.engine.close()


def test_enforced_outputs_are_as_asked_for(served: Served) -> None:
    """The same alone and in one batch, with tokens that are forced."""
    alone: dict[str, tuple[int, ...]] = {}
    for each in served.requests():
        alone |= served.run([each])
    assert served.engine.stats.num_forced_tokens
    assert alone == served.run(served.requests())
    called = served.read(alone["call"], CALLED)
    assert not called.content and called.calls[0].is_whole
    assert called.named == [("find", {"city": "<h1>Rome</h1>"})]
    assert served.read(alone["text"], ParserOptions()).content == "<tool_call>a▁b<|im_end|></s>"
    assert served.read(alone["answer"], REASONED).content == "yes<h1>"
