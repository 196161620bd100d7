// Draws the timeline of one request, and says it in words.

import { element, shape, table } from "./dom.js";
import { PARTS, QUESTIONS } from "./reasons.js";
import { targetWords } from "./targets.js";
import { isolated } from "./text.js";
import { counted, duration, percent } from "./units.js";

const WIDTH = 1000;
const ROW = 34;
const BAR = 20;
const AXIS = 26;
const NUM_TICKS = 4;

/** Return the timeline as `GET /v1/requests/{id}` tells it, drawn and in words. */
export function timelineView(timeline) {
  return element("div", {},
    element("p", {}, isolated(timeline.model), ` · ${timeline.state} · `,
      duration(timeline.total_ms),
      timeline.refused ? ` · ${timeline.refused_text}` : ""),
    ...(timeline.latency ? [element("p", {},
      `Targets: ${targetWords(timeline.latency, timeline.total_ms, true)}.`)] : []),
    drawing(timeline),
    legend(),
    ...timeline.choices.map((choice) => choiceView(choice, timeline)));
}

function drawing({ choices, total_ms: total }) {
  const x = (ms) => total > 0 ? (ms / total) * WIDTH : 0;
  const height = choices.length * ROW + AXIS;
  const rows = choices.map((choice, index) => row(choice, index * ROW, x));
  return element("div", { class: "scroll", tabindex: "0", role: "region",
    "aria-label": "Drawing of the timeline" },
    shape("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "timeline", role: "img",
      "aria-label": `Where ${duration(total)} went; the tables below say the same.` },
      ...rows, axis(total, choices.length * ROW)));
}

function row({ spans, events, index }, top, x) {
  const bars = spans.map(({ part, start_ms, end_ms }) =>
    shape("rect", { class: `part-${part}`, x: x(start_ms), y: top,
      width: Math.max(x(end_ms) - x(start_ms), 0.5), height: BAR },
      shape("title", {}, `Choice ${index}, ${part}: ${duration(end_ms - start_ms)}`)));
  const marks = events.map((event) =>
    shape("path", { class: "event", d: `M${x(event.t_ms)} ${top + BAR}v6` },
      shape("title", {}, `${duration(event.t_ms)}: ${event.text}`)));
  return shape("g", {}, ...bars, ...marks);
}

function axis(total, top) {
  const labels = Array.from({ length: NUM_TICKS + 1 }, (_, index) =>
    shape("text", { x: (index / NUM_TICKS) * WIDTH, y: top + AXIS - 8,
      "text-anchor": ["start", "middle", "middle", "middle", "end"][index] },
      duration((total * index) / NUM_TICKS)));
  return shape("g", { class: "axis" }, ...labels);
}

function legend() {
  return element("ul", { class: "legend" }, ...Object.entries(PARTS).map(([part, words]) =>
    element("li", {},
      shape("svg", { viewBox: "0 0 12 12", class: "swatch", "aria-hidden": "true" },
        shape("rect", { class: `part-${part}`, width: 12, height: 12 })),
      words)));
}

function choiceView(choice, { choices, total_ms }) {
  const { index, parts, counts, events } = choice;
  const name = choices.length > 1 ? ` of choice ${index}` : "";
  const times = Object.entries(parts).map(([part, ms]) =>
    [part, duration(ms), total_ms > 0 ? percent(ms / total_ms) : "0 %"]);
  return element("section", {},
    element("h3", {}, `Answers${name}`),
    element("dl", {}, ...answers(events, counts)),
    table(`Where the time went${name}`, ["Part", "Time", "Share"], times),
    table(`Events${name}`, ["After", "What happened"],
      events.map((event) => [duration(event.t_ms), eventWords(event)])));
}

function answers(events, counts) {
  const { cached_tokens, prompt_tokens, output_tokens, preemptions, lost_tokens } = counts;
  const told = [
    ["What was found in the cache?",
      [`${counted(cached_tokens, "token")} of ${counted(prompt_tokens, "prompt token")}.`]],
    ...QUESTIONS.map(([question, isAnswer, otherwise]) => {
      const found = events.filter(({ event }) => isAnswer(event)).map(eventWords);
      return [question, found.length > 0 ? found : [otherwise]];
    }),
    ["What was lost?", [`${counted(lost_tokens, "computed token")}, in ` +
      `${counted(preemptions, "preemption")}.`]],
    ["What came out?", [`${counted(output_tokens, "token")}.`]],
  ];
  return told.flatMap(([question, words]) =>
    [element("dt", {}, question), ...words.map((each) => element("dd", {}, each))]);
}

/** Return an event in words, with a link to the other request that had a part in it. */
function eventWords(event) {
  const { other, text } = event;
  if (!other || other.includes(" ") || event.event === "routed") return text;
  const [before, after] = text.split(other);
  if (after === undefined) return before;
  const answerId = other.replace(/-\d+$/, "");
  return element("span", {}, before,
    element("a", { href: `#requests/${encodeURIComponent(answerId)}` }, isolated(other)), after);
}
