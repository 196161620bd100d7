// The map of blocks: a cell for each, drawn on a canvas; only cells that differ are drawn again.

import { element } from "./dom.js";
import { FIRST_SET } from "./live_state.js";
import { isolated } from "./text.js";
import { counted, duration, number } from "./units.js";

const GOLDEN_ANGLE = 137.508;
const MAX_HEIGHT = 420;
const SIZES = [3, 18];
const AGES_S = [10, 60, 300];
const STEPS = { ArrowLeft: -1, ArrowRight: 1 };
const REDRAW_AGES_MS = 2000;

/** The states of the legend, in words. */
export const CELLS = {
  free: "free",
  cached0: "cached, under 10 s ago in use",
  cached1: "cached, under a minute",
  cached2: "cached, under 5 minutes",
  cached3: "cached, longer, or not known",
  own: "in use by one request (a colour for each)",
  shared: "shared by several",
  held: "in use by requests that are not shown",
  pinned: "pinned",
  swapped: "on the host, of a preempted request",
  host_cached: "on the host, cached",
  host_free: "on the host, free",
  null: "null block",
};

export class BlockMap {
  constructor() {
    this.state = null;
    this.drawn = new Int32Array(0);
    this.focus = 0;
    this.agesDrawn = 0;
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.told = element("p", { role: "status", class: "figures" }, "");
    this.box = element("div", { class: "map", tabindex: "0", role: "application",
      "aria-label": "Map of blocks. Arrow keys go from block to block.",
      onkeydown: (event) => this.onKey(event), onfocus: () => this.tell(this.focus),
      onmousemove: (event) => this.onMove(event) }, this.canvas);
    this.swatches = Object.fromEntries(Object.keys(CELLS).map((name) =>
      [name, element("span", { class: `cell cell-${name}`, "aria-hidden": "true" })]));
    this.legend = element("ul", { class: "legend" }, ...Object.entries(CELLS).map(([name, words]) =>
      element("li", {}, this.swatches[name], words)));
    this.node = element("div", {}, this.box, this.told, this.legend);
    new ResizeObserver(() => this.redraw()).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    document.getElementById("theme").addEventListener("change", () => this.redraw());
  }

  /** Show a state; the cells that are as they were are left alone. */
  show(state) {
    this.state = state;
    const { num_blocks, num_host_blocks } = state.shape;
    if (this.drawn.length !== num_blocks + num_host_blocks) return this.redraw();
    const isAgeDue = performance.now() - this.agesDrawn > REDRAW_AGES_MS;
    if (isAgeDue) this.agesDrawn = performance.now();
    this.draw(isAgeDue);
  }

  /** Lay the cells out again and draw them all. */
  redraw() {
    if (this.state === null || this.box.clientWidth === 0) return;
    const { num_blocks: own, num_host_blocks: host } = this.state.shape;
    const width = this.box.clientWidth;
    const fitting = Math.floor(Math.sqrt((width * MAX_HEIGHT) / Math.max(own + host, 1)));
    this.size = Math.min(Math.max(fitting, SIZES[0]), SIZES[1]);
    this.columns = Math.max(Math.floor(width / this.size), 1);
    this.hostRow = Math.ceil(own / this.columns) + 1;
    const rows = host ? this.hostRow + Math.ceil(host / this.columns) : this.hostRow - 1;
    const scale = devicePixelRatio;
    this.canvas.width = width * scale;
    this.canvas.height = rows * this.size * scale;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${rows * this.size}px`;
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.colours = Object.fromEntries(Object.entries(this.swatches).map(([name, swatch]) =>
      [name, getComputedStyle(swatch).backgroundColor]));
    this.drawn = new Int32Array(own + host).fill(-1);
    this.draw(true);
  }

  draw(isAgeDue) {
    const { codes } = this.state;
    const cached = this.state.shape.states.indexOf("cached");
    for (let id = 0; id < codes.length; id += 1) {
      const code = codes[id];
      if (code === this.drawn[id] && !(isAgeDue && code === cached)) continue;
      this.drawn[id] = code;
      const [x, y] = this.place(id);
      this.context.fillStyle = this.colour(id, code);
      this.context.fillRect(x, y, this.size - 1, this.size - 1);
    }
  }

  place(id) {
    const { num_blocks } = this.state.shape;
    const [index, top] = id < num_blocks ? [id, 0] : [id - num_blocks, this.hostRow];
    return [(index % this.columns) * this.size,
      (top + Math.floor(index / this.columns)) * this.size];
  }

  colour(id, code) {
    const { states } = this.state.shape;
    if (code >= FIRST_SET) {
      const numbers = this.state.sets.get(code) ?? [];
      if (numbers.length !== 1) return this.colours.shared;
      return `hsl(${(numbers[0] * GOLDEN_ANGLE) % 360} 60% 50%)`;
    }
    if (states[code] !== "cached") return this.colours[states[code]];
    const age = this.state.t - this.state.since[id];
    const shade = AGES_S.findIndex((limit) => age < limit);
    return this.colours[`cached${shade < 0 ? AGES_S.length : shade}`];
  }

  onMove(event) {
    if (this.state === null) return;
    const [column, row] = [event.offsetX, event.offsetY].map((at) => Math.floor(at / this.size));
    const { num_blocks } = this.state.shape;
    const index = row * this.columns + column;
    const id = row < this.hostRow - 1 ? Math.min(index, num_blocks - 1)
      : num_blocks + index - this.hostRow * this.columns;
    if (column < this.columns) this.tell(id);
  }

  onKey(event) {
    const steps = { ...STEPS, ArrowUp: -this.columns, ArrowDown: this.columns };
    const ends = { Home: 0, End: this.drawn.length - 1 };
    if (!(event.key in steps || event.key in ends)) return;
    event.preventDefault();
    const next = ends[event.key] ?? this.focus + steps[event.key];
    this.tell(Math.min(Math.max(next, 0), this.drawn.length - 1));
  }

  /** Say what a block holds. */
  tell(id) {
    if (this.state === null || id < 0 || id >= this.drawn.length) return;
    this.focus = id;
    const { num_blocks, block_size } = this.state.shape;
    const { state, holders, since } = this.state.block(id);
    const where = id < num_blocks ? `Block ${number(id)}` : `Host block ${number(id - num_blocks)}`;
    const age = Number.isNaN(since) ? "" : `, for ${duration(1000 * (this.state.t - since))}`;
    const parts = holders.slice(0, 4).flatMap(({ id: name }) => [" ", isolated(name)]);
    const more = holders.length > 4 ? ` and ${counted(holders.length - 4, "other")}` : "";
    this.told.replaceChildren(`${where}, ${counted(block_size, "token")}: `,
      `${state.replaceAll("_", " ")}${holders.length ? " by" : ""}`, ...parts, `${more}${age}.`);
  }
}
