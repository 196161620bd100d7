"""The compiled grammars of the requests that the engine has.

Grammars are compiled in one background thread. Until then their requests wait in the scheduler and
hold nobody.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from quire.engine.grammar.exact_tokenizer import GrammarVocabulary
from quire.engine.grammar.grammar_processor import GrammarProcessor, TokenMatcher, forced_tokens
from quire.engine.grammar.limits import parser_limits
from quire.engine.grammar.reasoning_masks import ReasoningMasks
from quire.engine.sampling.logits_processor import ProcessorContext

if TYPE_CHECKING:
    from llguidance import LLMatcher

logger = logging.getLogger(__name__)

MAX_UNUSED = 64
"""The maximum number of unused compiled grammars that are kept, the most recent ones."""

Compile = Callable[[str], TokenMatcher]


class CompiledGrammar(NamedTuple):
    """A matcher that has taken no token, the tokens that every output begins with, and the masks
    that are kept of the reasoning before an answer."""

    matcher: TokenMatcher
    forced: tuple[int, ...]
    reasoning_masks: dict[bytes, Tensor]


class CompiledRequest(NamedTuple):
    """A request whose grammar has been compiled, or could not be."""

    request_id: str
    has_failed: bool


class Grammars:
    """Compiles the grammars of requests, and keeps each as long as a request has it.

    `compile_grammar` runs in the background thread; it raises ValueError for a grammar that it
    cannot compile. `token_bytes` are those of every token by its id, none where they are not known.
    """

    def __init__(self, compile_grammar: Compile, token_bytes: Sequence[bytes] = ()) -> None:
        self.token_bytes = token_bytes
        self._compile = compile_grammar
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compile-grammar")
        self._compiled: OrderedDict[str, Future[CompiledGrammar]] = OrderedDict()
        self._grammar_of: dict[str, str] = {}
        self._num_users: dict[str, int] = {}
        self._waiting: dict[str, Future[CompiledGrammar]] = {}

    def hold(self, request_id: str, grammar: str) -> bool:
        """Keep the grammar for a request, and return whether it is compiled already. If not,
        `take_compiled` names the request later."""
        self._grammar_of[request_id] = grammar
        self._num_users[grammar] = self._num_users.get(grammar, 0) + 1
        future = self._compiled.get(grammar)
        if future is None:
            future = self._compiled[grammar] = self._thread.submit(self._compile_whole, grammar)
        self._compiled.move_to_end(grammar)
        if future.done() and future.exception() is None:
            return True
        self._waiting[request_id] = future
        return False

    def _compile_whole(self, grammar: str) -> CompiledGrammar:
        """Compile a grammar, and advance it by the common beginning of all outputs. Raises
        ValueError."""
        matcher = self._compile(grammar)
        forced = tuple(forced_tokens(matcher))
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return CompiledGrammar(matcher, forced, {})

    def release(self, request_id: str) -> None:
        """Note that a request has ended, whether it had a grammar or not."""
        grammar = self._grammar_of.pop(request_id, None)
        if grammar is None:
            return
        self._waiting.pop(request_id, None)
        self._num_users[grammar] -= 1
        if not self._num_users[grammar]:
            del self._num_users[grammar]
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop failed grammars that no request has, and of the others the longest unused."""
        unused = [each for each in self._compiled if each not in self._num_users]
        failed = [each for each in unused if _has_failed(self._compiled[each])]
        kept = [each for each in unused if each not in failed]
        for grammar in failed + kept[: max(len(kept) - MAX_UNUSED, 0)]:
            self._compiled.pop(grammar).cancel()

    def wait(self, seconds: float) -> None:
        """Wait for at most `seconds` until a grammar is compiled."""
        wait(self._waiting.values(), seconds, FIRST_COMPLETED)

    def take_compiled(self) -> list[CompiledRequest]:
        """Return the requests whose grammars were compiled since the last call."""
        done = [name for name, future in self._waiting.items() if future.done()]
        return [CompiledRequest(name, _has_failed(self._waiting.pop(name))) for name in done]

    def build_processor(self, context: ProcessorContext) -> GrammarProcessor | None:
        """Return a processor for a request with a grammar, which has taken its outputs so far."""
        grammar = context.sampling.grammar
        if not grammar:
            return None
        compiled, stopping = self._compiled[grammar].result(), context.stopping
        matcher = compiled.matcher.deep_copy()
        end_id = next(iter(stopping.eos_token_ids), None)
        tags, reasoning = context.sampling.reasoning_tags, None
        if tags is not None and self.token_bytes:
            reasoning = ReasoningMasks(tags, self.token_bytes, compiled.reasoning_masks)
        processor = GrammarProcessor(matcher, stopping.max_tokens, end_id, reasoning)
        processor.force(compiled.forced)
        for token_id in context.output_ids:
            processor.accept(token_id)
        return processor

    def close(self) -> None:
        """Compile nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _has_failed(future: "Future[CompiledGrammar]") -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def build_grammars(vocabulary: GrammarVocabulary | None) -> Grammars:
    """Return the grammars of a model; with no vocabulary each of them fails."""

    def compile_grammar(grammar: str) -> "LLMatcher":
        from llguidance import LLMatcher

        if vocabulary is None:
            raise ValueError("the model has no tokenizer with an end-of-sequence token")
        try:
            return LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=parser_limits())
        except Exception:
            logger.exception("a grammar cannot be compiled")
            raise

    return Grammars(compile_grammar, () if vocabulary is None else vocabulary.token_bytes)
