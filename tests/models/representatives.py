"""The families that stand for the others in `make test`, where a test of each of a hundred takes
minutes: `make long` has the rest.
"""

FAMILIES = {
    "llama": "rotary positions, grouped heads, a gated MLP",
    "qwen3": "a norm of each head's query and key",
    "olmo2": "norms behind the layers, and of all heads at once",
    "gpt2, scaled by layer": "learned positions, and another scale in each layer",
    "gpt_neox": "partial rotary positions, attention beside the MLP",
    "ctrl": "positions of sines, fixed",
    "opt": "learned positions that do not begin at 0",
    "cohere": "rotary positions in pairs, one norm, scaled logits",
    "bert": "an encoder's layers as a decoder",
    "bitnet": "norms inside of attention and MLP",
    "stories260K": "weights that were trained",
    "ministral3": "YaRN, and queries scaled by their position",
    "phi3, long rope": "one projection for all, frequencies by the length",
    "mistral, window": "a window in every layer",
    "qwen2, windows in the upper layers": "windows in some layers, biases",
    "gemma2": "scores and logits that are capped",
    "gemma3n_text": "several streams of states, K and V of earlier layers",
    "gemma4_text": "heads of another size in some layers",
    "gemma4_text, layers that share K and V": "K and V of earlier layers alone",
    "modernbert-decoder": "windows in turns, of an encoder's kind",
    "granite_swa": "sinks in layers without experts, multipliers",
    "mixtral": "experts",
    "qwen2_moe": "an expert that all tokens share",
    "dbrx": "queries, keys and values that are clipped",
    "jetmoe": "experts of attention",
    "gpt_oss": "sinks in layers with experts",
    "mimo_v2_flash": "values of another width than keys",
    "llama4_text": "chunks, layers without positions",
    "deepseek_v3": "latent attention, experts in groups",
    "longcat_flash": "two attentions in a layer",
    "minicpm3": "latent attention without experts",
    "qwen3_5_text": "gated delta nets beside attention that is gated",
    "olmo_hybrid": "gated delta nets whose projections lie apart, with negative eigenvalues",
    "lfm2": "short convolutions beside attention",
    "gemma3, text alone": "the text of a model of more",
    "qwen2_5_vl, text alone": "three positions a token, equal for text",
}
"""By name, the mechanisms that a family stands for. Every kind of layer in tests/models/families.py
has one at least."""
