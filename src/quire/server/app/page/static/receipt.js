// The memory receipt: its lines as a picture, and the options that would change each.

import { element, shape, table } from "./dom.js";
import { bytes, percent } from "./units.js";

/** The lines of the device's memory in the order of the picture: what each is, which options change
 * it, and how. */
export const LINES = {
  weights: ["The model's weights", "--quantization int8 and --dtype bfloat16 make them smaller."],
  activation: ["The work of the largest step",
    "It grows with --max-num-batched-tokens, token by token."],
  scratch: ["Work memory that every step needs",
    "It grows with --max-num-seqs and --max-model-len."],
  graphs: ["Captured steps",
    "--cudagraph-mode says which; --enforce-eager does without them, and steps are then slower."],
  kv: ["K and V: the cache of all requests",
    "--gpu-memory-utilization, --kv-cache-memory-bytes, --kv-cache-tokens or " +
    "--num-gpu-blocks-override says how much; --kv-cache-dtype int8 puts more tokens into it."],
  states: ["States of recurrent layers: of running requests, and snapshots of prefixes",
    "--num-recurrent-states says how many."],
  unused: ["Free, and left so", "--gpu-memory-utilization would give K and V more of it."],
  others: ["Used by others, or kept back",
    "The system's and other processes', and what --gpu-memory-utilization leaves."],
};
const WIDTH = 1000;
const HEIGHT = 44;

/** Return the parts of the device's memory with their bytes, so that they add up to it. */
export function shares(lines) {
  const { device, swap, ...own } = lines;
  const used = Object.values(own).reduce((sum, each) => sum + each, 0);
  return { ...own, others: Math.max((device ?? used) - used, 0) };
}

/** Return the picture of a receipt's lines, and a table that says the same. */
export function receiptView(lines) {
  const parts = Object.entries(shares(lines)).filter(([, count]) => count > 0);
  const total = parts.reduce((sum, [, count]) => sum + count, 0);
  const rows = parts.map(([kind, count]) => {
    const [what, how] = LINES[kind] ?? [kind, ""];
    return [named(kind, what), bytes(count), percent(count / total), how];
  });
  if (lines.swap > 0) {
    rows.push(["Swap space, on the host", bytes(lines.swap), "", "--swap-space says how much."]);
  }
  return element("div", {},
    bar(parts.map(([kind, count]) => [kind, count, `${kind}: ${bytes(count)}`]),
      `The device's ${bytes(total)} in parts; the table below says the same.`),
    table("Memory receipt", ["Part", "Size", "Share", "Options"], rows));
}

/** Return a bar of parts, each of a kind, a size and a title. */
export function bar(parts, label) {
  const total = parts.reduce((sum, [, size]) => sum + size, 0);
  let end = 0;
  const rects = parts.map(([kind, size, title]) => {
    const x = end;
    const width = total > 0 ? (size / total) * WIDTH : 0;
    end += width;
    return shape("rect", { class: `memory-${kind}`, x, width, height: HEIGHT },
      shape("title", {}, title));
  });
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "bar", role: "img",
    "aria-label": label, preserveAspectRatio: "none" }, ...rects);
}

/** Return the name of a part with the colour that it has in a bar. */
export function named(kind, name) {
  return element("span", {},
    shape("svg", { viewBox: "0 0 12 12", class: "swatch", "aria-hidden": "true" },
      shape("rect", { class: `memory-${kind}`, width: 12, height: 12 })),
    name);
}
