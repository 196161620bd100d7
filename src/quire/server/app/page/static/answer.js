// One output as it comes: its text, reasoning and tool calls, its tokens and its figures.

import { element, field } from "./dom.js";
import { visible } from "./text.js";
import { Tokens } from "./tokens.js";
import { counted, duration } from "./units.js";

export class Answer {
  /** `clock` returns milliseconds; the answer was asked for when it is made. */
  constructor(title, clock) {
    this.clock = clock;
    this.began = clock();
    this.first = this.last = null;
    this.id = "";
    this.usage = null;
    this.text = this.reasoning = "";
    this.calls = [];
    this.output = element("div", { class: "output said" });
    this.thought = element("div", { class: "output" });
    this.thoughts = element("details", { hidden: true, open: true },
      element("summary", {}, "Reasoning"), this.thought);
    this.called = element("div");
    this.tokens = new Tokens(this.output);
    this.figures = element("p", { class: "figures" });
    this.node = element("article", { class: "turn assistant" },
      element("h3", {}, title), this.thoughts, this.output, this.tokens.coloured, this.called,
      this.tokens.controls, this.tokens.rows, this.figures);
  }

  /** Take a chunk's id and usage, and the piece of its choice, if it has one. */
  take({ id, usage }, piece) {
    this.id = id;
    this.usage = usage ?? this.usage;
    if (piece === null) return;
    const isEmpty = !piece.text && !piece.reasoning && piece.calls.length === 0;
    if (!isEmpty || piece.tokens.length > 0) {
      this.last = this.clock();
      this.first ??= this.last;
    }
    this.text += piece.text;
    this.output.append(...visible(piece.text));
    this.reasoning += piece.reasoning;
    this.thought.append(...visible(piece.reasoning));
    this.thoughts.hidden = this.reasoning === "";
    this.tokens.take(piece.tokens);
    for (const part of piece.calls) this.takeCall(part);
  }

  takeCall({ index, id, function: called }) {
    this.calls[index] ??= newCall(this.called);
    const call = this.calls[index];
    call.id = id ?? call.id;
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
    call.shown.replaceChildren(...visible(`${call.name}(${call.arguments})`));
  }

  /** Show the figures, and how the output ended. */
  end(how) {
    const link = this.id
      ? [element("a", { href: `#requests/${encodeURIComponent(this.id)}` }, "Timeline")]
      : [];
    this.figures.replaceChildren([...this.said(), how].join(" · "), " ", ...link);
  }

  /** Return the figures in words: time to first token, tokens a second, usage. */
  said() {
    const said = [];
    if (this.first !== null) said.push(`first token after ${duration(this.first - this.began)}`);
    if (this.usage === null) return said;
    const { prompt_tokens, completion_tokens, prompt_tokens_details } = this.usage;
    const seconds = (this.last - this.first) / 1000;
    if (completion_tokens > 1 && seconds > 0) {
      said.push(`${((completion_tokens - 1) / seconds).toFixed(1)} tokens a second`);
    }
    const cached = prompt_tokens_details?.cached_tokens ?? 0;
    said.push(`${counted(prompt_tokens, "prompt token")} (${cached} cached)`);
    said.push(counted(completion_tokens, "output token"));
    return said;
  }

  /** Return the messages of a chat that this output is, with the results of its tool calls. */
  messages() {
    if (this.calls.length === 0) return [{ role: "assistant", content: this.text }];
    const tool_calls = this.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
    const results = this.calls.map((call) => (
      { role: "tool", tool_call_id: call.id, content: call.result.value }));
    return [{ role: "assistant", content: this.text || null, tool_calls }, ...results];
  }
}

function newCall(parent) {
  const shown = element("pre", { class: "output", tabindex: "0", role: "region",
    "aria-label": "Tool call" });
  const result = element("textarea", { rows: 2 });
  parent.append(element("div", { class: "call" }, shown,
    field("Result of this call", result, "It is sent with the next message.")));
  return { id: "", name: "", arguments: "", shown, result };
}
