// Latency targets in words: those of a request, and how many tokens of all came in time.

import { counted, duration, number, percent } from "./units.js";

const RECENT_S = 60;
const KINDS = [["First tokens", "ttft"], ["Later tokens", "itl"]];

/** Return what came of a request's targets; `waited` milliseconds have passed, if there is no first
 * token yet. With `isMean` the time between tokens is that of all, else that of the last two. */
export function targetWords(times, waited, isMean = false) {
  const { target_ttft_ms, target_itl_ms, ttft_ms, itl_ms, late_tokens } = times;
  const words = [];
  if (target_ttft_ms && ttft_ms !== null) {
    words.push(`first token ${compared(ttft_ms, target_ttft_ms)}`);
  } else if (target_ttft_ms) {
    const isLate = waited > target_ttft_ms ? ", late" : "";
    words.push(`no first token for ${duration(waited)} of ${duration(target_ttft_ms)}${isLate}`);
  }
  if (target_itl_ms) {
    words.push(isMean ? meanWords(itl_ms, target_itl_ms)
      : itl_ms === null ? `later ones within ${duration(target_itl_ms)}`
        : `last token ${compared(itl_ms, target_itl_ms)}`);
    if (late_tokens !== null) words.push(`${counted(late_tokens, "later token")} late`);
  }
  return words.join(" · ");
}

function compared(time, target) {
  return `${duration(time)} of ${duration(target)}, ${time > target ? "late" : "in time"}`;
}

function meanWords(time, target) {
  return time === null ? `later ones within ${duration(target)}`
    : `later ones ${duration(time)} of ${duration(target)} on average`;
}

/** Return what the figures of some minutes, the last of which is shown, tell of targets: sentences,
 * none where no request has had one. */
export function targetSentences(points) {
  const last = points.at(-1);
  const before = points.findLast(({ t }) => t <= last.t - RECENT_S) ?? points[0];
  const seconds = Math.max(Math.round(last.t - before.t), 1);
  const sentences = [];
  for (const [name, kind] of last.targets ? KINDS : []) {
    const [met, all] = countsOf(last, kind);
    if (all === 0) continue;
    const [metBefore, allBefore] = countsOf(before, kind);
    const recent = all - allBefore;
    const lately = recent <= 0 || met < metBefore ? ""
      : `${percent((met - metBefore) / recent)} of ${number(recent)} in the last ${seconds} s, `;
    sentences.push(`${name} in time: ${lately}${percent(met / all)} of ${number(all)} in all.`);
  }
  if (last.pace) sentences.push(paceSentence(last.pace));
  return sentences;
}

function countsOf({ targets }, kind) {
  if (!targets) return [0, 0];
  return [targets[`${kind}_met`], targets[`${kind}_met`] + targets[`${kind}_missed`]];
}

function paceSentence({ text, predicted_ms, error }) {
  return predicted_ms === null ? text
    : `${text} The last step was expected to take ${duration(predicted_ms)}; ` +
      `such times are wrong by ${percent(error)} on average.`;
}
