// The tab that talks to a model: conversations, and plain completions.

import { Answer } from "./answer.js";
import { Code } from "./code.js";
import { element, field } from "./dom.js";
import { ModelChoice } from "./models.js";
import { Options } from "./options.js";
import { piece } from "./pieces.js";
import { visible } from "./text.js";

const MODES = {
  chat: { path: "v1/chat/completions", label: "Message", ability: "chat",
    example: "What is the capital of France?" },
  completion: { path: "v1/completions", label: "Prompt",
    ability: "completion", example: "Once upon a time" },
};
const ENDS = {
  length: "ended at the most tokens",
  stop: "ended by itself or at a stop string",
  tool_calls: "ended with a tool call",
  abort: "was cancelled",
};
const NEAR_END_PX = 40;

/** Build the tab in its panel. */
export function mount(panel, api) {
  return new Chat(panel, api);
}

class Chat {
  constructor(panel, api) {
    this.api = api;
    this.mode = "chat";
    this.answers = [];  // of the conversation: what was said by the user, and the answer to it
    this.running = null;
    this.models = new ModelChoice(api, () => this.refresh());
    this.options = new Options(() => this.code.refresh());
    this.code = new Code(api, () => this.shownRequest());
    this.input = element("textarea", { rows: 3, placeholder: MODES[this.mode].example,
      oninput: () => this.code.refresh(),
      onkeydown: (event) => this.onKey(event) });
    this.inputField = field("Message", this.input, "Enter sends, Shift and Enter begin a line.");
    this.send = element("button", { type: "submit", class: "main" }, "Send");
    this.stop = element("button", { type: "button", disabled: true,
      onclick: () => this.running?.abort() }, "Stop");
    this.status = element("p", { role: "status" });
    this.error = element("p", { role: "alert", class: "error" });
    this.log = element("div", { class: "log", role: "log", "aria-live": "off",
      "aria-label": "Conversation", tabindex: "0" });
    this.build(panel);
  }

  build(panel) {
    const clear = element("button", { type: "button", onclick: () => this.begin() }, "New");
    const form = element("form", { class: "composer", "aria-label": "Compose",
      onsubmit: (event) => this.submit(event) },
      this.inputField, element("div", { class: "row" }, this.send, this.stop, clear));
    this.form = form;
    panel.append(element("div", { class: "columns" },
      element("div", { class: "talk" },
        element("div", { class: "row" }, this.models.node, this.modeField()),
        element("h2", { class: "unseen" }, "Conversation"), this.log,
        this.status, this.error, form, this.code.node),
      this.options.node));
  }

  modeField() {
    this.modeInputs = Object.keys(MODES).map((mode) => element("input", { type: "radio",
      name: "mode", id: `mode-${mode}`, value: mode, checked: mode === this.mode,
      onchange: () => this.setMode(mode) }));
    const labels = { chat: "Chat", completion: "Completion" };
    return element("fieldset", {}, element("legend", {}, "Kind"),
      ...this.modeInputs.map((input) => element("span", { class: "check" }, input,
        element("label", { for: input.id }, labels[input.value]))));
  }

  async shown() {
    try {
      await this.models.refresh();
      this.error.textContent = "";
    } catch (error) {
      this.error.textContent = error.message;
    }
  }

  /** Show what the chosen model can be asked for. */
  refresh() {
    for (const input of this.modeInputs) {
      input.disabled = !this.models.can(MODES[input.value].ability);
    }
    const chosen = this.modeInputs.find((input) => input.checked);
    const other = this.modeInputs.find((input) => !input.disabled);
    if (chosen.disabled && other) {
      other.checked = true;
      this.setMode(other.value);
    }
    this.options.tools.disabled = !this.models.can("tools");
    this.options.schema.disabled = !this.models.can("structured_outputs");
    this.code.refresh();
  }

  setMode(mode) {
    this.mode = mode;
    this.inputField.querySelector("label").textContent = MODES[mode].label;
    this.input.placeholder = MODES[mode].example;
    this.options.setMode(mode);
    this.clear();
    this.code.refresh();
  }

  clear() {
    this.running?.abort();
    this.answers = [];
    this.log.replaceChildren();
    this.status.textContent = this.error.textContent = "";
  }

  /** Begin a new conversation. */
  begin() {
    this.clear();
    this.input.focus();
    this.code.refresh();
  }

  onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.form.requestSubmit();
  }

  /** Return the path and the body of the request that sends this text; null for wrong options. */
  request(text, earlier = this.answers) {
    const options = this.options.read(this.mode);
    if (options === null) return null;
    const said = this.mode === "chat"
      ? { messages: this.messages(text, earlier) }
      : { prompt: text };
    const stream = { stream: true, stream_options: { include_usage: true } };
    const body = { model: this.models.name, ...said, ...options, ...stream };
    return { path: MODES[this.mode].path, body };
  }

  /** Return the request as it would be sent, or where nothing is written, sent again. */
  shownRequest() {
    const last = this.answers.at(-1);
    return this.input.value === "" && last !== undefined
      ? this.request(last.asked, this.answers.slice(0, -1))
      : this.request(this.input.value);
  }

  messages(text, answers) {
    const system = this.options.system.value;
    const earlier = answers.flatMap(({ asked, answer }) =>
      [...(asked ? [{ role: "user", content: asked }] : []), ...answer.messages()]);
    return [
      ...(system ? [{ role: "system", content: system }] : []),
      ...earlier,
      ...(text || earlier.at(-1)?.role !== "tool" ? [{ role: "user", content: text }] : []),
    ];
  }

  async submit(event) {
    event.preventDefault();
    const text = this.input.value;
    if (this.running) return;
    const request = this.request(text);
    if (request === null) {
      this.options.report();
      return;
    }
    this.input.value = "";
    if (this.mode === "completion") this.clear();
    if (text) this.log.append(turnOf(this.mode === "chat" ? "You" : "Prompt", text));
    const answer = new Answer(this.models.name, () => performance.now());
    this.log.append(answer.node);
    this.running = new AbortController();
    this.setRunning(true);
    const how = await this.follow(request, answer, this.running.signal);
    this.running = null;
    this.setRunning(false);
    if (how !== null && answer.node.isConnected) this.answers.push({ asked: text, answer });
    if (how === null && this.input.value === "") this.input.value = text;
    this.code.refresh();
  }

  /** Take the stream to its end; return how it ended, or null where it failed. */
  async follow({ path, body }, answer, signal) {
    const stream_options = { ...body.stream_options, continuous_usage_stats: true };
    let how = "ended";
    try {
      for await (const chunk of this.api.stream(path, { ...body, stream_options }, signal)) {
        const choice = chunk.choices[0] ?? null;
        const isAtEnd = this.isAtEnd();
        answer.take(chunk, choice && piece(choice));
        if (isAtEnd) this.log.scrollTop = this.log.scrollHeight;
        how = ENDS[choice?.finish_reason] ?? choice?.finish_reason ?? how;
      }
    } catch (error) {
      how = signal.aborted ? "stopped" : null;
      if (how === null) this.error.textContent = error.message;
    }
    answer.end(how ?? "failed");
    this.status.textContent = how === null ? "" : `The answer ${saidOf(answer, how)}.`;
    return how;
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    return scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  setRunning(isRunning) {
    this.send.disabled = isRunning;
    this.stop.disabled = !isRunning;
    if (!isRunning) return;
    this.error.textContent = "";
    this.status.textContent = "Answering…";
    this.log.scrollTop = this.log.scrollHeight;
  }
}

function turnOf(title, text) {
  return element("article", { class: "turn user" },
    element("h3", {}, title), element("div", { class: "output" }, ...visible(text)));
}

function saidOf(answer, how) {
  const verb = how === "stopped" ? "was stopped" : how;
  return [verb, ...answer.said()].join(", ");
}
