"""Trains the small model that ships with Quire and writes it as an ordinary Hugging Face folder.

The text, a play, is told twice: as printed, and as chats whose turns are its speeches, rendered by
the very template that ships. The same text and seed give the same tokenizer and order of batches.
"""

import argparse
import hashlib
import math
import random
import time
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, END = "<|endoftext|>", "<|end|>"
SPECIAL_TOKENS = [BOS, END, "<|system|>", "<|user|>", "<|assistant|>"]
BOS_ID, END_ID = 0, 1  # special tokens come first in the vocabulary
VOCAB_SIZE, MAX_LEN = 2048, 1024
HELD_OUT = 0.05
VALIDATION_LEN = 512
MAX_TURN_CHARS = 400  # longer speeches are left to the plain rendering, so that replies end soon
PERSONA_SHARE = 0.5
STEPS_BETWEEN_REPORTS, STEPS_BETWEEN_VALIDATIONS = 10, 100

BUNDLED = Path(__file__).parents[1] / "src/quire/models/bundled"
CHAT_TEMPLATE = (BUNDLED / "chat_template.jinja").read_text(encoding="utf-8")

CARD = """\
---
license: apache-2.0
language: en
---

# The model in the box

A very small Llama that ships with Quire: `quire serve bundled` serves readable text on
any machine, with no download and no GPU. It writes in the manner of Shakespeare's plays. Made by
`tools/train_bundled_model.py`.

**Use it** to try out and test a server: streaming, stop conditions, batching, chat rendering.
**Do not use it** for anything that needs an answer. It follows no instructions, knows no facts, and
loses the thread after a sentence or two, makes up words, and repeats itself when decoded greedily.
It has seen one author only, and its text may hold the insults and violence of the plays.

| | |
|---|---|
| Data | "Tiny Shakespeare": plays by Shakespeare, `data/tinyshakespeare/input.txt` of github.com/karpathy/char-rnn; SHA-256 `{sha256}` |
| Licence | data: public domain; weights: Apache-2.0 |
| Held out | the last {held_out:.0%} of the text, from the tokenizer and from training |
| Tokenizer | byte-level BPE, {config.vocab_size} tokens with all 256 bytes and five special tokens; {chars_per_token:.2f} characters per token on held-out text |
| Architecture | `LlamaForCausalLM`, {num_parameters:,} parameters: {config.num_hidden_layers} layers, width {config.hidden_size}, {config.num_attention_heads} query heads over {config.num_key_value_heads} KV heads of {config.head_dim}, MLP {config.intermediate_size}, tied embeddings, context {config.max_position_embeddings}, bf16 |
| Training | {clock.step} steps of {clock.recipe.batch_tokens} tokens: {clock.num_tokens:,} tokens seen (the budget: {clock.recipe.steps} steps or {clock.recipe.minutes:.0f} minutes); Muon for the matrices, AdamW for the rest, peak rate {clock.recipe.peak_rate}, weight decay {clock.recipe.weight_decay}, dropout {clock.recipe.dropout}, seed {clock.recipe.seed} |
| Time | {minutes:.0f} minutes on {threads} threads of a shared server CPU, bf16 matrix products |
| Training loss | {best.train_loss:.3f} with dropout, just before step {best.step}, which had the best validation loss and is kept |
| Validation loss, play | {losses.play:.3f}: perplexity {play_perplexity:.1f}, {play_bits:.2f} bits per character |
| Validation loss, chat | {losses.chat:.3f}: perplexity {chat_perplexity:.1f} |

Losses are in nats per token; the validation losses are those of the stored bf16 weights.

The text is told twice: as printed, and as chats in which speeches in a row take turns as `<|user|>`
and `<|assistant|>`, without names, each closed by `<|end|>`. `<|endoftext|>` opens every sequence: the
tokenizer adds it to plain text, and the chat template writes it itself, so encode a rendered chat
with `add_special_tokens=False`. System messages were only ever like "You are Romeo."; expect
little of them. A reply ends at `<|end|>`; plain text seldom ends before its token limit.
"""  # noqa: E501


class Speech(NamedTuple):
    speaker: str
    text: str


class Losses(NamedTuple):
    play: float
    chat: float


@dataclass(frozen=True, slots=True)
class Recipe:
    steps: int
    minutes: float
    seed: int
    batch_tokens: int = 4096
    window_lens: tuple[int, ...] = (256, 256, 512, 1024)
    peak_rate: float = 4e-3
    warmup: float = 0.04
    weight_decay: float = 0.1
    dropout: float = 0.1


@dataclass(frozen=True, slots=True)
class Clock:
    """Return how far a recipe has run: by its steps or by its minutes, whichever is further."""

    recipe: Recipe
    step: int
    elapsed_s: float

    @property
    def progress(self) -> float:
        by_time = self.elapsed_s / 60 / self.recipe.minutes
        return min(max(self.step / self.recipe.steps, by_time), 1.0)

    @property
    def num_tokens(self) -> int:
        return self.step * self.recipe.batch_tokens

    def __str__(self) -> str:
        speed = self.num_tokens / self.elapsed_s
        left_s = self.elapsed_s * (1 / self.progress - 1)
        return f"step {self.step:5}  {speed:6.0f} tokens/s  {left_s / 60:5.1f} min left"


@dataclass(frozen=True, slots=True)
class Best:
    step: int
    train_loss: float
    losses: Losses
    weights: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Rendering:
    """One telling of the text, and where a window may open: at a line's or a chat's start."""

    tokens: Tensor
    starts: Tensor

    def windows(self, starts: Tensor, length: int) -> Tensor:
        """For each start, BOS and `length` more tokens: inputs and, shifted by one, labels."""
        rows = self.tokens[starts[:, None] + torch.arange(length)]
        return functional.pad(rows, (1, 0), value=BOS_ID)

    def draw(self, num_windows: int, length: int, generator: torch.Generator) -> Tensor:
        usable = self.starts[self.starts + length <= len(self.tokens)]
        picks = torch.randint(len(usable), (num_windows,), generator=generator)
        return self.windows(usable[picks], length)


@dataclass(frozen=True, slots=True)
class Corpus:
    play: Rendering
    chat: Rendering

    def draw(self, recipe: Recipe, generator: torch.Generator) -> Tensor:
        """A batch of windows of one length, half of them of each rendering."""
        pick = torch.randint(len(recipe.window_lens), (), generator=generator)
        length = recipe.window_lens[int(pick)]
        half = recipe.batch_tokens // length // 2
        return torch.cat([each.draw(half, length, generator) for each in (self.play, self.chat)])


def split_text(text: str) -> tuple[str, str]:
    """The training part and the held-out part, parted between two speeches."""
    border = text.index("\n\n", int(len(text) * (1 - HELD_OUT))) + 2
    return text[:border], text[border:]


def parse_speeches(text: str) -> list[Speech]:
    parted = (block.strip().partition(":\n") for block in text.split("\n\n"))
    return [Speech(speaker, words.strip()) for speaker, _, words in parted if words.strip()]


def build_chats(speeches: list[Speech], rng: random.Random) -> list[list[dict[str, str]]]:
    """Speeches in a row as chats of two to eight turns, told from both sides."""
    chats = []
    for start in (0, 1):
        while start < len(speeches):
            span = speeches[start : start + rng.choice((2, 2, 4, 6, 8))]
            turns = list(takewhile(lambda speech: len(speech.text) <= MAX_TURN_CHARS, span))
            start += len(turns) + (len(turns) < len(span))
            if len(turns) >= 2:
                chats.append(build_chat(turns[: len(turns) // 2 * 2], rng))
    rng.shuffle(chats)
    return chats


def build_chat(turns: list[Speech], rng: random.Random) -> list[dict[str, str]]:
    roles = ("user", "assistant") * (len(turns) // 2)
    chat = [{"role": role, "content": turn.text} for role, turn in zip(roles, turns, strict=True)]
    repliers = {speech.speaker for speech in turns[1::2]}
    if len(repliers) == 1 and rng.random() < PERSONA_SHARE:
        chat.insert(0, {"role": "system", "content": f"You are {repliers.pop().title()}."})
    return chat


def train_tokenizer(text: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=BOS,
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_LEN,
    )


def build_corpus(text: str, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Corpus:
    chats = build_chats(parse_speeches(text), rng)
    told = "".join(str(tokenizer.apply_chat_template(chat, tokenize=False)) for chat in chats)
    [newline_id] = tokenizer.encode("\n", add_special_tokens=False)
    return Corpus(render(text, tokenizer, newline_id), render(told, tokenizer, BOS_ID))


def render(text: str, tokenizer: PreTrainedTokenizerFast, opener_id: int) -> Rendering:
    tokens = torch.tensor(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
    return Rendering(tokens, torch.nonzero(tokens[:-1] == opener_id).flatten() + 1)


def build_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=MAX_LEN,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=[END_ID, BOS_ID],
        pad_token_id=BOS_ID,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=BOS_ID,
        eos_token_id=[END_ID, BOS_ID],
        pad_token_id=BOS_ID,
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
    )
    return model


def add_dropout(model: nn.Module, rate: float) -> None:
    """Drop from the embedding and from what each block adds: Llama has no such dropout itself."""
    for name, module in model.named_modules():
        if name.endswith(("embed_tokens", "o_proj", "down_proj")):
            module.register_forward_hook(lambda m, _, x: functional.dropout(x, rate, m.training))


def build_optimizers(model: nn.Module, recipe: Recipe) -> list[Optimizer]:
    """Muon on the matrices: in one short trial it reached AdamW's loss in about half the tokens."""
    named = dict(model.named_parameters())
    matrices = [named.pop(name) for name in list(named) if name.endswith("proj.weight")]
    decay = recipe.weight_decay
    muon = torch.optim.Muon(matrices, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(named.values(), weight_decay=decay, betas=(0.9, 0.98))]


def rate_at(progress: float, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to a hundredth."""
    if progress < recipe.warmup:
        return recipe.peak_rate * (progress + 0.001) / recipe.warmup
    fall = (progress - recipe.warmup) / (1 - recipe.warmup)
    return recipe.peak_rate * (0.505 + 0.495 * math.cos(math.pi * fall))


def loss_of(model: nn.Module, windows: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


@torch.inference_mode()
def validate(model: nn.Module, held_out: Corpus) -> Losses:
    model.eval()
    means = []
    for rendering in (held_out.play, held_out.chat):
        starts = torch.arange(0, len(rendering.tokens) - VALIDATION_LEN + 1, VALIDATION_LEN)
        windows = rendering.windows(starts, VALIDATION_LEN)
        losses = [loss_of(model, window[None]).item() for window in windows]
        means.append(sum(losses) / len(losses))
    model.train()
    return Losses(*means)


def update(model: nn.Module, optimizers: list[Optimizer], windows: Tensor) -> float:
    loss = loss_of(model, windows)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def train(model: nn.Module, corpus: Corpus, held_out: Corpus, recipe: Recipe) -> tuple[Best, Clock]:
    generator = torch.Generator().manual_seed(recipe.seed)
    optimizers = build_optimizers(model, recipe)
    begin_s = time.monotonic()
    clock = Clock(recipe, 0, 0.0)
    best = Best(0, math.inf, Losses(math.inf, math.inf), {})
    recent: list[float] = []
    while clock.progress < 1:
        for group in (group for each in optimizers for group in each.param_groups):
            group["lr"] = rate_at(clock.progress, recipe)
        recent.append(update(model, optimizers, corpus.draw(recipe, generator)))
        clock = Clock(recipe, clock.step + 1, time.monotonic() - begin_s)
        train_loss = sum(recent) / len(recent)
        if clock.step % STEPS_BETWEEN_REPORTS == 0:
            print(f"{clock}  loss {train_loss:.3f}", flush=True)
        if clock.step % STEPS_BETWEEN_VALIDATIONS == 0 or clock.progress == 1:
            losses = validate(model, held_out)
            print(f"{clock}  validation {losses.play:.3f} {losses.chat:.3f}", flush=True)
            if sum(losses) < sum(best.losses):
                weights = {name: value.clone() for name, value in model.state_dict().items()}
                best = Best(clock.step, train_loss, losses, weights)
            recent.clear()
    return best, clock


def card_of(model: LlamaForCausalLM, text: str, held_out: Corpus, best: Best, clock: Clock) -> str:
    losses = validate(model, held_out)
    chars_per_token = len(split_text(text)[1]) / len(held_out.play.tokens)
    return CARD.format(
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        held_out=HELD_OUT,
        chars_per_token=chars_per_token,
        num_parameters=model.num_parameters(),
        config=model.config,
        clock=clock,
        best=best,
        losses=losses,
        play_perplexity=math.exp(losses.play),
        play_bits=losses.play / math.log(2) / chars_per_token,
        chat_perplexity=math.exp(losses.chat),
        minutes=clock.elapsed_s / 60,
        threads=torch.get_num_threads(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="the play, as UTF-8 text")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the checkpoint to")
    parser.add_argument("--steps", type=int, default=540)
    parser.add_argument("--minutes", type=float, default=30.0, help="if less, fewer steps")
    parser.add_argument("--seed", type=int, default=1623)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    recipe = Recipe(arguments.steps, arguments.minutes, arguments.seed)
    seen, unseen = split_text(text := arguments.text.read_text(encoding="utf-8"))
    tokenizer = train_tokenizer(seen)
    rng = random.Random(arguments.seed)
    corpus, held_out = build_corpus(seen, tokenizer, rng), build_corpus(unseen, tokenizer, rng)
    print(f"training tokens: play {len(corpus.play.tokens)}, chat {len(corpus.chat.tokens)}")
    model = build_model()
    add_dropout(model, recipe.dropout)
    best, clock = train(model, corpus, held_out, recipe)
    model.load_state_dict(best.weights)
    model.bfloat16()
    card = card_of(model, text, held_out, best, clock)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    Path(arguments.out, "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
