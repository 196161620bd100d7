// Shows text of strangers: what models, clients and operators have written.

import { element } from "./dom.js";

// Controls but tab and line feed, the marks that turn the direction of text or hide it, and tags.
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160" +
  "\\u17b4\\u17b5\\u180b-\\u180f\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f" +
  "\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]", "gu");

/** Return the nodes of a text in which each hidden character is a mark that can be seen. */
export function visible(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(HIDDEN)) {
    nodes.push(text.slice(end, found.index), mark(found[0]));
    end = found.index + found[0].length;
  }
  nodes.push(text.slice(end));
  return nodes.filter((node) => node !== "");
}

function mark(character) {
  const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return element("span", { class: "mark" }, `U+${code}`);
}

/** Return a short text of a stranger, such as a name, apart from the text around it. */
export function isolated(text) {
  return element("bdi", { class: "foreign" }, ...visible(text));
}
