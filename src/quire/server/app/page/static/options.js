// The options of a request, as a form; what is left empty is the model's default.

import { checkbox, element, field } from "./dom.js";

const NUMBERS = [
  ["max_tokens", "Most tokens", { min: 1, step: 1 }],
  ["temperature", "Temperature", { min: 0, max: 2, step: "any" }],
  ["top_p", "Top p", { min: 0, max: 1, step: "any" }],
  ["top_k", "Top k", { min: -1, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: "any" }],
  ["seed", "Seed", { step: 1 }],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: "any" }],
  ["frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: "any" }],
  ["repetition_penalty", "Repetition penalty", { min: 0, step: "any" }],
];
const TOOL_CHOICES = ["auto", "required", "none"];
const NUM_LIKELIEST = 3;
const SCHEMA_EXAMPLE = '{"type": "object", "properties": {"name": {"type": "string"}}}';
const TOOLS_EXAMPLE = '[{"type": "function", "function": {"name": "find", "parameters": {}}}]';

export class Options {
  /** `onChange` is called after each change of any option. */
  constructor(onChange) {
    this.numbers = NUMBERS.map(([name, label, rules]) => {
      const input = element("input", { type: "number", ...rules });
      return { name, input, node: field(label, input) };
    });
    this.system = area(3);
    this.stop = area(2);
    this.schema = area(5, SCHEMA_EXAMPLE);
    this.tools = area(5, TOOLS_EXAMPLE);
    this.toolChoice = element("select", {},
      ...TOOL_CHOICES.map((choice) => element("option", {}, choice)));
    this.parallel = element("input", { checked: true });
    this.logprobs = element("input");
    this.chatOnly = [
      field("System prompt", this.system),
      field("Tools (JSON)", this.tools, "A list, as OpenAI's API takes it."),
      field("Tool choice", this.toolChoice),
      checkbox("Several calls at once", this.parallel),
    ];
    this.node = this.form(onChange);
  }

  form(onChange) {
    const [system, ...tools] = this.chatOnly;
    return element("form", { class: "options", "aria-label": "Options", oninput: onChange,
      onsubmit: (event) => event.preventDefault() },
      element("h2", {}, "Options"),
      system,
      element("div", { class: "grid" }, ...this.numbers.map(({ node }) => node)),
      field("Stop strings", this.stop, "One a line."),
      field("JSON schema", this.schema, "The answer is made to keep it."),
      ...tools,
      checkbox("Log probabilities of the tokens", this.logprobs));
  }

  /** Show what this kind of request takes. */
  setMode(mode) {
    for (const node of this.chatOnly) node.hidden = mode !== "chat";
  }

  /** Return the request's fields of one mode, or null where some are wrong. */
  read(mode) {
    const schema = json(this.schema);
    const tools = mode === "chat" ? json(this.tools) : undefined;
    return this.node.checkValidity() ? this.fields(mode, schema, tools) : null;
  }

  /** Show the person what is wrong. */
  report() {
    this.node.reportValidity();
  }

  fields(mode, schema, tools) {
    const fields = {};
    for (const { name, input } of this.numbers) {
      if (input.value !== "") fields[name] = input.valueAsNumber;
    }
    const stops = this.stop.value.split("\n").filter((line) => line !== "");
    if (stops.length > 0) fields.stop = stops;
    if (schema !== undefined) {
      const json_schema = { name: "answer", schema, strict: true };
      fields.response_format = { type: "json_schema", json_schema };
    }
    if (tools !== undefined) {
      const tool_choice = this.toolChoice.value;
      Object.assign(fields, { tools, tool_choice, parallel_tool_calls: this.parallel.checked });
    }
    if (this.logprobs.checked) Object.assign(fields, likeliest(mode));
    return fields;
  }
}

function area(rows, placeholder = "") {
  return element("textarea", { rows, placeholder, spellcheck: "false" });
}

function likeliest(mode) {
  return mode === "chat"
    ? { logprobs: true, top_logprobs: NUM_LIKELIEST }
    : { logprobs: NUM_LIKELIEST };
}

/** Return the value of a field of JSON, undefined where it is empty; mark it if it is none. */
function json(control) {
  control.setCustomValidity("");
  if (control.value.trim() === "") return undefined;
  try {
    return JSON.parse(control.value);
  } catch (error) {
    control.setCustomValidity(`This is not JSON: ${error.message}`);
    return undefined;
  }
}
