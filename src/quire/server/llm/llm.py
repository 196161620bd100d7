"""A model in a Python program, for code that does not wait on an event loop."""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import TypeVar

from quire.progress import Progress
from quire.server.llm.async_llm import AsyncLLM, Message, Prompt
from quire.server.llm.outputs import Chunk, RequestOutput
from quire.server.llm.sampling_params import SamplingParams

Given = TypeVar("Given")
Made = TypeVar("Made")


class LLM:
    """A model, loaded by the time this returns, in a process of its own.

        with LLM("Qwen/Qwen3-0.6B", quantization="int8") as llm:
            for each in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
                print(each.text)

    `model` is what `quire serve` takes; `options` are its options for models and engines, by their
    names with `_`. With `show_progress` a bar on a terminal tells how far loading and lists are.
    Methods may be called from several threads. Raises StartError and `InvalidOption`.
    """

    def __init__(self, model: str, *, show_progress: bool = True, **options: object) -> None:
        self._shows = show_progress and sys.stderr.isatty()
        self._loop = asyncio.new_event_loop()
        self._is_closed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="llm", daemon=True)
        self._thread.start()
        self._llm: AsyncLLM | None = None
        try:
            llm = self._do(_made(lambda: AsyncLLM(model, **options)))
            with closing(_progress("part")) as bar:
                self._do(llm.open(bar.show if self._shows else None))
            self._llm = llm
        except BaseException:
            self.close()
            raise

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[RequestOutput]:
        """Return what the model makes of each text or list of token ids, in their order; of one
        prompt a list of one. Raises RequestError for the first that is refused."""
        llm = self._opened()
        asked = [prompts] if _is_prompt(prompts) else prompts
        return self._each(asked, lambda prompt: llm.generate(prompt, params))  # type: ignore[arg-type]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> list[RequestOutput]:
        """Return the model's turn in each conversation; of one conversation a list of one. Raises
        RequestError."""
        llm = self._opened()
        asked = [messages] if isinstance(messages[0], Mapping) else messages
        return self._each(asked, lambda each: llm.chat(each, params, tools=tools))  # type: ignore[arg-type]

    def embed(self, texts: Prompt | Sequence[Prompt]) -> list[tuple[float, ...]]:
        """Return the vector of each text or list of token ids. Raises RequestError."""
        llm = self._opened()
        asked = [texts] if _is_prompt(texts) else texts
        return self._each(asked, llm.embed)  # type: ignore[arg-type]

    def stream(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None
    ) -> Generator[Chunk, None, None]:
        """Yield what the model makes of a prompt, or of messages, as it comes. Raises
        RequestError. A reader that goes on no more ends the request."""
        chunks = self._opened().stream(prompt, params)
        try:
            while (chunk := self._do(_next(chunks.__anext__()))) is not None:
                yield chunk
        finally:
            self._do(chunks.aclose())

    def close(self) -> None:
        """End the engine; it may be called again."""
        llm, self._llm = self._llm, None
        if llm is not None:
            self._do(llm.close())
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._is_closed.set)
            self._thread.join()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        """Run the loop until this is closed."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(_wait(self._is_closed))

    def _opened(self) -> AsyncLLM:
        if self._llm is None:
            raise RuntimeError("the model is closed")
        return self._llm

    def _do(self, work: Coroutine[None, None, Made]) -> Made:
        """Return what a coroutine on the loop does."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _each(self, given: Sequence[Given], run: Callable[[Given], Awaitable[Made]]) -> list[Made]:
        """Return what `run` makes of each, all of them at once; the first error ends the others."""
        with closing(_progress("request")) as bar:
            show = bar.show if self._shows and len(given) > 1 else None
            return self._do(_all(given, run, show))


async def _all(
    given: Sequence[Given],
    run: Callable[[Given], Awaitable[Made]],
    show: Callable[[str, int, int], None] | None,
) -> list[Made]:
    num_done = 0

    async def one(each: Given) -> Made:
        nonlocal num_done
        made = await run(each)
        num_done += 1
        if show is not None:
            show("answering", num_done, len(given))
        return made

    tasks = [asyncio.ensure_future(one(each)) for each in given]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _made(make: Callable[[], Made]) -> Made:
    """Make something inside the event loop."""
    return make()


async def _next(chunk: Awaitable[Chunk]) -> Chunk | None:
    """Return the next chunk, None behind the last."""
    try:
        return await chunk
    except StopAsyncIteration:
        return None


def _progress(unit: str) -> Progress:
    return Progress(sys.stderr, lambda part: None, unit)


def _is_prompt(given: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
