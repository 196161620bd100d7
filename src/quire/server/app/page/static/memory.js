// The tab of memory: what it went to when the model was loaded, and what its blocks hold now.

import { element, table } from "./dom.js";
import { bar, named, receiptView } from "./receipt.js";
import { isolated } from "./text.js";
import { bytes, number, percent } from "./units.js";

const BLOCKS = {
  active: "Active: of requests that run",
  cached: "Cached: of the prefix cache, given away when they are needed",
  pinned: "Pinned: of prefixes that are never given away",
  free: "Free",
  swapped: "On the host: of preempted requests",
  host_cached: "On the host: of the prefix cache",
};
const ON_DEVICE = ["active", "cached", "pinned", "free"];

/** Build the tab in its panel. */
export function mount(panel, api) {
  return new Memory(panel, api);
}

class Memory {
  constructor(panel, api) {
    this.api = api;
    this.error = element("p", { role: "alert", class: "error" });
    this.blocks = element("div");
    this.receipts = element("div");
    panel.append(element("h2", {}, "Memory"),
      element("button", { type: "button", onclick: () => this.shown() }, "Refresh"),
      this.error, this.blocks, this.receipts);
  }

  async shown() {
    this.error.textContent = "";
    await this.show(this.blocks, "v1/loads", (told) => told.models.map(blocksView));
    await this.show(this.receipts, "v1/server_info", (told) => told.models.map(modelView));
  }

  async show(place, path, view) {
    try {
      place.replaceChildren(...view(await this.api.get(path)));
    } catch (error) {
      place.replaceChildren();
      this.error.append(element("span", {}, error.message, " "));
    }
  }
}

function blocksView({ model, blocks }) {
  const total = ON_DEVICE.reduce((sum, state) => sum + blocks[state], 0);
  const rows = Object.entries(BLOCKS).map(([state, words]) =>
    [named(state, words), number(blocks[state])]);
  return element("section", {},
    element("h3", {}, "Blocks of ", isolated(model), " now"),
    bar(ON_DEVICE.map((state) => [state, blocks[state], `${state}: ${number(blocks[state])}`]),
      `${number(total)} blocks by what they hold; the table below says the same.`),
    table("Blocks by state", ["State", "Blocks"], rows));
}

function modelView({ name, status, facts, memory }) {
  const title = element("h3", {}, "Memory receipt of ", isolated(name));
  if (memory === null) {
    return element("section", {}, title, element("p", {}, `The model is ${status}.`));
  }
  return element("section", {}, title,
    element("p", {}, isolated(facts.device), " · ", isolated(facts.model_type), " · ",
      isolated(facts.dtype), facts.quantization === "none" ? "" : ` · ${facts.quantization}`),
    receiptView(memory.lines),
    table("What it holds", ["Number", "Value", "Why, and what would change it"], factsOf(memory)));
}

function factsOf(memory) {
  const groups = memory.layer_groups.map((group) =>
    `${group.num_layers} × ${group.kind.replaceAll("_", " ")}` +
    (group.reach === null ? "" : ` ${number(group.reach)}`) +
    (group.is_kept_whole ? ", kept whole" : "") +
    (group.num_sharing ? `, and ${group.num_sharing} that share their K and V` : ""));
  return [
    ["Blocks", `${number(memory.num_blocks)} of ${memory.block_size} tokens`,
      `${memory.why_num_blocks}; --block-size`],
    ["Tokens of context", number(memory.kv_tokens),
      `${bytes(memory.kv_token_bytes)} a token in ${memory.kv_dtype}; --kv-cache-dtype`],
    ["Longest request", `${number(memory.max_model_len)} tokens`,
      `memory allows ${number(memory.max_model_len_fits)}; --max-model-len`],
    ["Requests of that length at once", memory.max_concurrency.toFixed(1),
      "shorter requests fit more often; --max-model-len, and more memory for K and V"],
    ["Tokens of a step", number(memory.max_num_batched_tokens),
      `${memory.why_max_num_batched_tokens}; --max-num-batched-tokens`],
    ["Layers", groups.join("; "), memory.why_kept_whole === ""
      ? "the model's; windows keep less of a long request"
      : `${bytes(memory.unseen_token_bytes)} of ${bytes(memory.passed_token_bytes)} a token are ` +
        `kept though no layer sees them: ${memory.why_kept_whole}`],
    ["K and V that hold no layer", percent(memory.padding_share),
      "layers of different kinds share blocks; --disable-hybrid-kv-cache-manager"],
  ];
}
