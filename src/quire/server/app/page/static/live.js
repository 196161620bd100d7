// The tab of what a model holds and does now, and did in the last minutes.

import { element, field, table } from "./dom.js";
import { Charts } from "./live_charts.js";
import { LiveHistory } from "./live_history.js";
import { Lanes } from "./live_lanes.js";
import { BlockMap } from "./live_map.js";
import { targetSentences } from "./targets.js";
import { isolated } from "./text.js";
import { duration, number } from "./units.js";

const RETRY_MS = [1000, 2000, 5000, 10_000];
const REFUSED = [400, 401, 403, 404];
const TABLE_MS = 1000;
const MAX_TOLD = 20;

/** Build the tab in its panel. */
export function mount(panel, api) {
  return new Live(panel, api);
}

class Live {
  constructor(panel, api) {
    this.api = api;
    this.history = new LiveHistory();
    this.stopping = null;
    this.paused = null;
    this.isDue = false;
    this.tableTimer = null;
    [this.map, this.lanes, this.charts] = [new BlockMap(), new Lanes(), new Charts()];
    this.models = element("select", { onchange: () => this.restart() });
    this.error = element("p", { role: "alert", class: "error" });
    this.status = element("p", { role: "status" });
    this.when = element("output", { class: "figures" });
    this.back = element("input", { type: "range", min: 0, max: 0, value: 0,
      oninput: () => this.pause(Number(this.back.value)) });
    this.pausing = element("button", { type: "button", onclick: () => this.toggle() }, "Pause");
    this.blocks = element("div");
    this.preempted = element("ul", { class: "told" });
    this.targets = element("ul", { class: "told", "aria-label": "Latency targets", hidden: true });
    this.shownPart = element("div", { hidden: true }, this.charts.node, this.targets,
      element("h3", {}, "Blocks"), this.map.node,
      element("details", {}, element("summary", {}, "Blocks as a table"), this.blocks),
      this.lanes.node,
      element("h3", {}, "Preemptions"), this.preempted);
    panel.append(element("h2", {}, "Live"),
      element("div", { class: "row" }, field("Watched", this.models), this.pausing,
        field("Back in time", this.back), this.when),
      this.error, this.status, this.shownPart);
    document.addEventListener("visibilitychange", () => this.onVisibility());
    const recolour = () => requestAnimationFrame(() => this.recolour());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    document.getElementById("theme").addEventListener("change", recolour);
  }

  async shown() {
    this.isShown = true;
    this.recolour();
    await this.listModels();
    this.restart();
  }

  hidden() {
    this.isShown = false;
    this.stop();
  }

  onVisibility() {
    if (!this.isShown) return;
    if (document.hidden) this.stop();
    else this.restart({ keepsHistory: true });
  }

  async listModels() {
    const chosen = this.models.value;
    try {
      const { data } = await this.api.get("v1/models");
      this.models.replaceChildren(...data.map(({ id }) => element("option", { value: id }, id)));
      if (data.some(({ id }) => id === chosen)) this.models.value = chosen;
    } catch (error) {
      this.error.textContent = error.message;
    }
  }

  stop() {
    this.stopping?.abort();
    this.stopping = null;
  }

  /** Begin a stream in place of one that runs. */
  restart({ keepsHistory = false } = {}) {
    this.stop();
    if (!this.isShown) return;
    if (!keepsHistory) this.clear();
    this.stopping = new AbortController();
    this.follow(this.stopping.signal);
  }

  clear() {
    this.history = new LiveHistory();
    this.paused = null;
    this.pausing.textContent = "Pause";
    this.shownPart.hidden = true;
    this.preempted.replaceChildren();
  }

  /** Read one stream after another until the signal says that none is wanted any more. */
  async follow(signal) {
    const path = `v1/live?model=${encodeURIComponent(this.models.value)}`;
    for (let failures = 0; !signal.aborted; failures += 1) {
      try {
        for await (const event of this.api.events(path, signal)) {
          failures = 0;
          this.error.textContent = "";
          this.take(event);
        }
        if (!signal.aborted) this.status.textContent = "The stream has ended: trying again.";
      } catch (error) {
        if (signal.aborted) return;
        this.error.textContent = error.message;
        this.status.textContent = "";
        if (REFUSED.includes(error.status)) return;
      }
      await waited(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)], signal);
    }
  }

  take(event) {
    if (event.type === "engine") {
      this.status.textContent = event.state === "loaded"
        ? "" : `The engine of the model is ${event.state}.`;
      return;
    }
    const { dropped } = this.history;
    this.history.add(event);
    if (this.paused !== null) {
      this.paused = Math.max(this.paused - (this.history.dropped - dropped), 0);
    }
    for (const each of event.preempted ?? []) this.tellPreemption(each);
    this.schedule();
  }

  tellPreemption({ t, n, why }) {
    const { id } = this.history.now.requests.get(n) ?? { id: "a request" };
    this.preempted.prepend(element("li", {}, `${clock(t)} `, isolated(id), ` ${why.text}`));
    if (this.preempted.children.length > MAX_TOLD) this.preempted.lastChild.remove();
  }

  toggle() {
    if (this.paused === null) this.pause(this.history.length - 1);
    else this.resume();
  }

  pause(index) {
    if (index < 0) return;
    this.paused = index;
    this.pausing.textContent = "Go on live";
    this.schedule();
  }

  resume() {
    this.paused = null;
    this.pausing.textContent = "Pause";
    this.schedule();
  }

  schedule() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      if (this.isShown && this.history.length > 0) this.render();
    });
  }

  render() {
    const { history, paused } = this;
    const last = history.length - 1;
    const index = Math.min(paused ?? last, last);
    const isNow = paused === null;
    const state = isNow ? history.now : history.at(index);
    this.shownPart.hidden = false;
    this.back.max = last;
    this.back.value = index;
    const ago = history.now.t - state.t;
    this.when.textContent = isNow ? `${clock(state.t)}, live`
      : `${clock(state.t)}, ${duration(1000 * ago)} ago`;
    this.back.setAttribute("aria-valuetext", this.when.textContent);
    this.map.show(state);
    this.lanes.show(state, !isNow || state.figures.running === 0);
    const points = history.figures(index);
    this.charts.show(points);
    this.tellTargets(targetSentences(points));
    this.shownState = state;
    if (isNow) this.tableTimer ??= setTimeout(() => this.count(), TABLE_MS);
    else this.count();
  }

  tellTargets(sentences) {
    this.targets.hidden = sentences.length === 0;
    while (this.targets.children.length > sentences.length) this.targets.lastChild.remove();
    sentences.forEach((words, index) => {
      const line = this.targets.children[index] ?? this.targets.appendChild(element("li"));
      if (line.textContent !== words) line.textContent = words;
    });
  }

  /** Count the blocks that are shown: not with each event, since nobody reads as fast. */
  count() {
    clearTimeout(this.tableTimer);
    this.tableTimer = null;
    this.blocks.replaceChildren(countsOf(this.shownState));
  }

  recolour() {
    this.lanes.recolour();
    this.charts.recolour();
    this.schedule();
  }
}

function countsOf(state) {
  const { num_blocks } = state.shape;
  const counts = new Map();
  for (let id = 0; id < state.codes.length; id += 1) {
    const code = state.codes[id];
    const name = code < state.shape.states.length ? state.shape.states[code]
      : state.sets.get(code)?.length > 1 ? "shared" : "in use";
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const rows = [...counts].map(([name, count]) =>
    [name.replaceAll("_", " "), number(count)]);
  return table(`Blocks by what they hold, ${number(num_blocks)} on the device`,
    ["State", "Blocks"], rows);
}

function clock(t) {
  return new Date(1000 * t).toLocaleTimeString("en-GB");
}

function waited(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
