// The requests in flight as lanes: the phases of the last minute, drawn, and the reason in words.

import { element } from "./dom.js";
import { targetWords } from "./targets.js";
import { isolated } from "./text.js";
import { number } from "./units.js";

const SHOWN_S = 60;
const TURNS = 8;
const [WIDTH, HEIGHT] = [240, 12];
const HEADS = ["Request", "Phase", "Tokens", "Targets", "Why", "Last minute"];
const TARGETS = HEADS.indexOf("Targets");

/** The phases in words, in the order of their colours in the legend. */
export const PHASES = {
  queued: "queued", prefill: "prefill", decode: "decode", preempted: "preempted",
  swapped: "swapped to the host",
};

export class Lanes {
  constructor() {
    this.rows = new Map();
    this.visible = new Set();
    this.turn = 0;
    this.seen = new IntersectionObserver((entries) => this.onSeen(entries));
    this.swatches = Object.fromEntries(Object.keys(PHASES).map((phase) =>
      [phase, element("span", { class: `cell phase-${phase}`, "aria-hidden": "true" })]));
    this.body = element("div", { role: "rowgroup" });
    this.caption = element("h3", { id: "lanes-title" }, "Requests in flight");
    this.node = element("div", {}, this.caption,
      element("ul", { class: "legend" }, ...Object.entries(PHASES).map(([phase, words]) =>
        element("li", {}, this.swatches[phase], words))),
      this.table = element("div", { class: "lanes", tabindex: "0", role: "table",
        "aria-labelledby": "lanes-title" },
        element("div", { role: "rowgroup" }, element("div", { role: "row", class: "lane" },
          ...HEADS.map((head, index) => element("span", { role: "columnheader",
            class: index === TARGETS && "targets" }, head)))), this.body));
  }

  /** Show a state. Of those that nobody sees a few at a time are brought up to date, unless it
   * `isLast` for a while. */
  show({ requests, t, figures }, isLast) {
    for (const [n, row] of this.rows) if (!requests.has(n)) this.drop(n, row);
    this.turn = (this.turn + 1) % TURNS;
    this.table.classList.toggle("timed", [...requests.values()].some(hasTargets));
    for (const [n, request] of requests) {
      const isSeen = this.visible.has(n) || !this.rows.has(n);
      if (isLast || isSeen || n % TURNS === this.turn) this.update(n, request, t);
    }
    const unlisted = figures.unlisted ? `, and ${number(figures.unlisted)} more that wait` : "";
    put(this.caption, `Requests in flight: ${number(requests.size)}${unlisted}`);
  }

  drop(n, row) {
    this.seen.unobserve(row.node);
    row.node.remove();
    this.rows.delete(n);
    this.visible.delete(n);
  }

  update(n, request, t) {
    let row = this.rows.get(n);
    if (!row || row.id !== request.id) {
      if (row) this.drop(n, row);
      row = this.add(n, request);
    }
    const { prompt, max_tokens, computed, outputs, phase, preemptions, why } = request;
    put(row.phase, PHASES[phase] ?? phase);
    put(row.tokens, `${number(computed)} / ${number(prompt + outputs)}, of ` +
      number(prompt + max_tokens));
    if (row.why !== why) {
      row.why = why;
      const times = preemptions ? ` (${number(preemptions)} × preempted)` : "";
      row.reason.textContent = why ? why.text + times : "";
    }
    if (hasTargets(request)) put(row.targets, wordsOf(request, t));
    if (this.visible.has(n)) this.draw(row.canvas, request.spans, request.arrived, t);
  }

  add(n, { id, key }) {
    const cell = () => element("span", { role: "cell" });
    const [name, phase, tokens, reason, bar] = [cell(), cell(), cell(), cell(), cell()];
    const targets = element("span", { role: "cell", class: "targets" });
    const canvas = element("canvas", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" });
    bar.append(canvas);
    name.append(element("a", { href: `#requests/${encodeURIComponent(id.replace(/-\d+$/, ""))}` },
      isolated(id)), ...(key ? [" ", isolated(key)] : []));
    const node = element("div", { role: "row", class: "lane" },
      name, phase, tokens, targets, reason, bar);
    node.dataset.n = n;
    const row = { id, node, phase, tokens, targets, canvas, reason, why: undefined };
    this.rows.set(n, row);
    this.body.append(node);
    this.seen.observe(node);
    return row;
  }

  onSeen(entries) {
    for (const { target, isIntersecting } of entries) {
      const n = Number(target.dataset.n);
      if (isIntersecting) this.visible.add(n);
      else this.visible.delete(n);
    }
  }

  /** Take the colours of the scheme that is used now. */
  recolour() {
    this.colours = Object.fromEntries(Object.entries(this.swatches).map(([phase, swatch]) =>
      [phase, getComputedStyle(swatch).backgroundColor]));
  }

  draw(canvas, spans, arrived, t) {
    const context = canvas.getContext("2d");
    const x = (time) => Math.max((1 - (t - time) / SHOWN_S) * WIDTH, 0);
    context.clearRect(0, 0, WIDTH, HEIGHT);
    spans.forEach(([phase, since], index) => {
      const begin = x(Number.isNaN(since) ? arrived : since);
      const end = index + 1 < spans.length ? x(spans[index + 1][1]) : WIDTH;
      context.fillStyle = this.colours[phase] ?? this.colours.queued;
      context.fillRect(begin, 0, end - begin, HEIGHT);
    });
  }
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function hasTargets({ target_ttft_ms, target_itl_ms }) {
  return target_ttft_ms !== undefined || target_itl_ms !== undefined;
}

function wordsOf({ target_ttft_ms, target_itl_ms, times, arrived }, t) {
  const [ttft_ms, itl_ms, late_tokens] = times ?? [null, null, 0];
  return targetWords({ target_ttft_ms, target_itl_ms, ttft_ms, itl_ms, late_tokens },
    Math.max(1000 * (t - arrived), 0));
}
