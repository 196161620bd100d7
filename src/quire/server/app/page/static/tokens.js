// Tokens of an output by their probability: as colours, and as a table for who sees none.

import { checkbox, element, table } from "./dom.js";
import { isolated, visible } from "./text.js";
import { percent } from "./units.js";

const LEAST = [0.9, 0.6, 0.3, 0.1, 0.02];
const MOST_ROWS = 500;

/** Return the class of a probability: 0 is the likeliest of six. */
export function level(probability) {
  const found = LEAST.findIndex((least) => probability >= least);
  return found === -1 ? LEAST.length : found;
}

export class Tokens {
  /** `plain` is the element with the text; `coloured` takes its place. */
  constructor(plain) {
    this.plain = plain;
    this.all = [];
    this.decoder = new TextDecoder();
    this.coloured = element("div", { class: "output", hidden: true });
    this.toggle = element("input", { onchange: () => this.colour(this.toggle.checked) });
    this.body = element("div");
    this.rows = element("details", { hidden: true, ontoggle: () => this.list() },
      element("summary", {}, "Tokens as a table"), this.body);
    this.controls = element("div", { class: "row", hidden: true },
      checkbox("Colour tokens by probability", this.toggle), legend());
  }

  take(tokens) {
    if (tokens.length === 0) return;
    this.controls.hidden = this.rows.hidden = false;
    this.all.push(...tokens);
    this.coloured.append(...tokens.map((each) => span(each, this.textOf(each))));
  }

  /** Return what a token adds to the text: the last one of a character has all of it. */
  textOf({ token, bytes }) {
    return bytes ? this.decoder.decode(new Uint8Array(bytes), { stream: true }) : token;
  }

  colour(isOn) {
    this.coloured.hidden = !isOn;
    this.plain.hidden = isOn;
  }

  list() {
    if (!this.rows.open) return;
    const more = this.all.length > MOST_ROWS ? ` (the first ${MOST_ROWS})` : "";
    const rows = this.all.slice(0, MOST_ROWS).map(row);
    this.body.replaceChildren(table(`Tokens and their probabilities${more}`,
      ["Token", "Probability", "Likeliest"], rows));
  }
}

function span({ logprob }, text) {
  const probability = Math.exp(logprob);
  return element("span",
    { class: `token p${level(probability)}`, title: percent(probability) }, ...visible(text));
}

function row({ token, logprob, likeliest }) {
  const others = likeliest.flatMap(([text, value]) =>
    [quoted(text), ` ${percent(Math.exp(value))} `]);
  return [quoted(token), percent(Math.exp(logprob)), element("span", {}, ...others)];
}

function quoted(token) {
  return isolated(token.replaceAll("\n", "⏎").replaceAll(" ", "␣"));
}

function legend() {
  const steps = [...LEAST, 0].map((least, index) =>
    element("span", { class: `token p${index}` }, least === 0 ? "less" : `≥ ${percent(least)}`));
  return element("span", { class: "legend" }, ...steps);
}
