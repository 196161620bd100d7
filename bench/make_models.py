"""Make random-weight benchmark checkpoints in Hugging Face format; nothing is downloaded.

The weights come from a seeded generator, the tokenizer is a real byte-level BPE trained on text
that lies on this disk, or that of the bundled model. What such a model writes is noise: only its
speed means anything, and what a grammar makes of it.

    python -m bench.make_models OUT_DIR [--only NAME] [--text DIR ...] [--seed N]

Writes OUT_DIR/bench-0.5b  Qwen2 with the dimensions of Qwen2.5-0.5B, bf16
       OUT_DIR/bench-15m   Llama, 6 layers of 288, fp32
       OUT_DIR/bench-delta Qwen3.5 with the dimensions of Qwen3.5-0.8B, bf16: three gated delta nets
                           to an attention
       OUT_DIR/bench-conv  LFM2 with the dimensions of LFM2-350M, bf16: short convolutions
       OUT_DIR/bench-agent Llama, 2 layers of 128, fp32, 32k of context, with the bundled model's
                           tokenizer and chat template, which takes tools; written in a second
"""

import argparse
import json
import random
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

AGENT = "bench-agent"
BUNDLED = Path(str(files("quire.models") / "bundled"))
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SAMPLE = "def main(argv):\n    # Grüße, 世界\n    return 0"
TEXT_SUFFIXES = frozenset({".py", ".txt", ".rst", ".md", ""})
# What the BPE learns at most. The rest of the vocabulary is filled with unreachable but
# decodable tokens, so that every id a model can draw has a text to send and to time.
MAX_LEARNED_VOCAB = 32000


def text_files(folders: Sequence[Path], max_bytes: int, seed: int) -> list[Path]:
    """Paths of mid-sized text files under the folders, shuffled, about max_bytes in all."""
    found = sorted(
        {
            path
            for folder in folders
            for path in folder.rglob("*")
            if path.suffix in TEXT_SUFFIXES and path.is_file()
        }
    )
    random.Random(seed).shuffle(found)
    chosen, num_bytes = [], 0
    for path in found:
        size = path.stat().st_size
        if 500 < size < 2_000_000:
            chosen.append(path)
            num_bytes += size
        if num_bytes > max_bytes:
            break
    return chosen


def texts(paths: Sequence[Path]) -> Iterator[str]:
    """The files' contents, less those that are not UTF-8."""
    for path in paths:
        try:
            yield path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue


def train_tokenizer(paths: Sequence[Path], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of exactly vocab_size tokens, filled up where the text taught fewer."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocab_size, MAX_LEARNED_VOCAB),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(texts(paths), trainer)
    spec = json.loads(trained.to_str())
    vocab = spec["model"]["vocab"]
    for token_id in range(len(vocab), vocab_size):
        vocab[f"Ġw{token_id}"] = token_id
    return Tokenizer.from_str(json.dumps(spec))


def write_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int) -> None:
    """Save the tokenizer with its chat template, once it has round-tripped a sample."""
    if tokenizer.decode(tokenizer.encode(SAMPLE).ids) != SAMPLE:
        raise SystemExit("the trained tokenizer does not round-trip")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def build_half_billion() -> PreTrainedModel:
    """The shape of Qwen2.5-0.5B in bf16."""
    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config).bfloat16()


def build_fifteen_million() -> PreTrainedModel:
    """A small Llama in fp32, so cheap to run that the server's own cost shows."""
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=288,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def build_agent() -> PreTrainedModel:
    """A tiny Llama in fp32 with room for the prompts of agents, which are thousands of tokens."""
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=[1, 0],
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def build_delta() -> PreTrainedModel:
    """The shape of Qwen3.5-0.8B in bf16: of 24 layers 18 are gated delta nets."""
    config = Qwen3_5TextConfig(
        vocab_size=248320,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        max_position_embeddings=32768,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen3_5ForCausalLM(config).bfloat16()


def build_conv() -> PreTrainedModel:
    """The shape of LFM2-350M in bf16: of 16 layers 10 are short convolutions."""
    config = Lfm2Config(
        vocab_size=65536,
        hidden_size=1024,
        intermediate_size=6656,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
        full_attn_idxs=[2, 5, 8, 10, 12, 14],
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Lfm2ForCausalLM(config).bfloat16()


BUILDERS: dict[str, Callable[[], PreTrainedModel]] = {
    "bench-0.5b": build_half_billion,
    "bench-15m": build_fifteen_million,
    "bench-delta": build_delta,
    "bench-conv": build_conv,
    AGENT: build_agent,
}


def copy_bundled_tokenizer(folder: Path, max_length: int) -> None:
    """Write the bundled model's tokenizer and chat template, with another length."""
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(BUNDLED / name, folder)
    settings = json.loads((BUNDLED / "tokenizer_config.json").read_text())
    settings["model_max_length"] = max_length
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def write_checkpoint(name: str, folder: Path, paths: Sequence[Path], seed: int) -> str:
    """Make one checkpoint and return a line that describes it. Where a request says nothing
    bench-agent samples, since random weights that decode greedily end nothing they begin."""
    started_s = time.monotonic()
    torch.manual_seed(seed)
    model = BUILDERS[name]()
    config = model.config
    if model.generation_config is not None:
        model.generation_config.do_sample = name == AGENT
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    if name == AGENT:
        copy_bundled_tokenizer(folder, config.max_position_embeddings)
    else:
        tokenizer = train_tokenizer(paths, config.vocab_size)
        write_tokenizer(folder, tokenizer, config.max_position_embeddings)
    num_millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    return (
        f"{folder}: {num_millions:.1f} M parameters, {model.dtype}, "
        f"vocabulary {config.vocab_size}, {time.monotonic() - started_s:.0f} s"
    )


def main() -> None:
    """Make the checkpoints that the command line asks for."""
    parser = argparse.ArgumentParser(description="make random-weight benchmark checkpoints")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=BUILDERS)
    parser.add_argument("--text", type=Path, nargs="*", help="folders of text for the tokenizer")
    parser.add_argument("--text-mib", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1234)
    args = parser.parse_args()
    folders = args.text or [
        Path("/usr/share/common-licenses"),
        Path(sysconfig.get_paths()["stdlib"]),
    ]
    paths = text_files(folders, args.text_mib << 20, args.seed)
    for name in [args.only] if args.only else BUILDERS:
        print(write_checkpoint(name, args.out / name, paths, args.seed), file=sys.stderr)


if __name__ == "__main__":
    main()
