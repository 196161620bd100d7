// Small charts of the last minutes.

import { element } from "./dom.js";
import { duration, number, percent } from "./units.js";

const SHOWN_S = [30, 300];
const [WIDTH, HEIGHT] = [260, 56];

const CHARTS = [
  ["Running", ({ running }) => running, number],
  ["Waiting", ({ waiting }) => waiting, number],
  ["Tokens a second", (each) => each.tokens_per_s, (value) => number(Math.round(value))],
  ["Prefix hit rate", (each) => each.hit_rate, percent],
  ["Time of a step", (each) => each.step_ms, duration],
];

export class Charts {
  constructor() {
    this.charts = CHARTS.map(([title, value, words]) => {
      const canvas = element("canvas", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" });
      const said = element("figcaption", {}, title);
      return { title, value, words, canvas, said,
        node: element("figure", { class: "chart" }, said, canvas) };
    });
    this.node = element("div", { class: "charts", role: "group",
      "aria-label": "Figures of the last five minutes" }, ...this.charts.map(({ node }) => node));
  }

  /** Take the colours of the scheme that is used now. */
  recolour() {
    this.line = getComputedStyle(this.node).color;
  }

  /** Draw the figures, the newest of which is said in words. */
  show(points) {
    const last = points.at(-1);
    const seconds = Math.min(Math.max(last.t - points[0].t, SHOWN_S[0]), SHOWN_S[1]);
    const shown = points.filter(({ t }) => t >= last.t - seconds);
    for (const chart of this.charts) {
      const values = shown.map((each) => [each.t, chart.value(each)])
        .filter(([, value]) => value !== null);
      const most = values.reduce((top, [, value]) => Math.max(top, value), 0);
      const now = chart.value(last);
      const words = now === null ? "–" : chart.words(now);
      const text = `${chart.title}: ${words} (most ${chart.words(most)})`;
      if (chart.said.textContent !== text) chart.said.textContent = text;
      this.draw(chart.canvas.getContext("2d"), values, most || 1,
        (t) => (1 - (last.t - t) / seconds) * WIDTH);
    }
  }

  draw(context, values, most, place) {
    context.clearRect(0, 0, WIDTH, HEIGHT);
    context.strokeStyle = this.line;
    context.lineWidth = 1.5;
    context.beginPath();
    values.forEach(([time, value], index) => {
      const x = place(time);
      const y = HEIGHT - 2 - (value / most) * (HEIGHT - 4);
      if (index === 0) context.moveTo(x, y);
      else context.lineTo(x, y);
    });
    context.stroke();
  }
}
