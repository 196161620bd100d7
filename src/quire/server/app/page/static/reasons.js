// The events of timelines in words, by the codes of the scheduler. `n` is the event's number, `by`
// the words for another request that had a part in it, empty where none had.

import { counted } from "./units.js";

const tokens = (n) => counted(n, "token");

/** The sentence of each event, and the questions that some of them answer. */
export const REASONS = {
  queued: (n) => n ? `Queued behind ${counted(n, "request")}.` : "Queued as the first.",
  routed: (n, by) => `Given to replica${by}.`,
  waits_for_blocks: (n, by) => `Waits for ${counted(n, "block")} of KV memory${behind(by)}.`,
  waits_for_state: (n, by) => `Waits, since requests hold all states${behind(by)}.`,
  waits_for_sequence: (n, by) =>
    `Waits, since ${counted(n, "request")} run, as many as may (--max-num-seqs)${behind(by)}.`,
  waits_for_budget: (n, by) =>
    `Waits, since the step's ${tokens(n)} are taken (--max-num-batched-tokens)${behind(by)}.`,
  waits_for_pace: (n, by) =>
    `Waits, since prompts have had their ${tokens(n)} of the step${paceOf(by)}.`,
  waits_after_preemption: (n) =>
    `Waits a step, since ${counted(n, "request")} had to give blocks back.`,
  waits_for_prompt: () => "Waits for the choice before it to compute the prompt they share.",
  waits_for_prefix: (n, by) =>
    `Waits for ${tokens(n)} of its prompt that${by || " another"} computes.`,
  waits_for_grammar: () => "Waits for its grammar to be compiled.",
  waits_for_disk: () => "Waits for blocks of its prompt to be read from disk.",
  waits_for_peer: () => "Waits for blocks of its prompt to come from another engine.",
  waits_for_skipped: (n, by) =>
    `Waits for one ahead that was passed ${counted(n, "time")}, as often as may be${behind(by)}.`,
  late: (n) => `Lets others by: its first token would be ${n} ms late, or make others late.`,
  late_expected: (n) => `Its first token is expected ${n} ms after its target.`,
  counts_later: (n) => `Counts as if it had come ${n} ms later, since it is expected to take long.`,
  let_by: (n, by) => `Lets ${by || "another"} by, which is shorter (by ${n} ms of the order).`,
  loaded_from_disk: (n) => `Had ${tokens(n)} of its prompt read from disk.`,
  loaded_from_peer: (n) => `Had ${tokens(n)} of its prompt from another engine.`,
  admitted: (n) => `Admitted; ${tokens(n)} of its prompt were in the prefix cache.`,
  resumed: (n) => `Resumed; ${tokens(n)} were in the prefix cache.`,
  forked: (n, by) =>
    `Admitted; it shares ${tokens(n)} of the prompt with${by || " another choice"}.`,
  swapped_in: (n) => `Resumed; the host had kept ${tokens(n)}.`,
  paced: (n, by) => `Computed in parts: prompts get ${tokens(n)} of a step${paceOf(by)}.`,
  first_token: () => "First token.",
  miss_too_short: (n) => `No more was cached: ${tokens(n)} fill no block.`,
  miss_differs: (n) => `No more was cached: from token ${n} on it differs from what is.`,
  miss_evicted: (n) => `No more was cached: from token ${n} on it was, but has been evicted.`,
  miss_salt: (n) => `No more was cached: from token ${n} on it is, but for others.`,
  miss_state: (n) => `No more was used: K and V of ${tokens(n)} are cached, no state there.`,
  miss_new: () => "No more was cached: nothing like it was seen before.",
  pinned: (n) => `Pinned, ${counted(n, "block")}.`,
  not_pinned: (n) => `Not pinned: others were meanwhile, ${counted(n, "block")} too many.`,
  pin_lost: () => "Not pinned: the prefix cache was reset meanwhile.",
  preempted_for_blocks: (n, by) => `Preempted${forWhom(by)}; ${tokens(n)} were thrown away.`,
  preempted_for_urgent: (n, by) =>
    `Gave its place to a more urgent request${by && `,${by}`}; ${tokens(n)} were thrown away.`,
  swapped_out: (n, by) => `Preempted${forWhom(by)}; the host keeps ${tokens(n)}.`,
  engine_restarted: (n) => `The engine was started again; ${counted(n, "output token")} were kept.`,
  stop_token: () => "Ended at a stop token.",
  end_of_sequence: () => "Ended by itself.",
  max_tokens: () => "Ended at its most tokens.",
  prompt_computed: () => "Ended with its prompt.",
  context_end: () => "Ended at the end of the context.",
  aborted: () => "Aborted: the client had gone, a stop string was found, or it was cancelled.",
  not_finite: () => "Failed: the model's numbers were not finite.",
  step_failed: () => "Failed: its part of a step raised an error.",
  grammar_failed: () => "Failed: its grammar could not be compiled or followed, or left no token.",
  deadline_exceeded: () => "Ended: its time limit had passed.",
  quarantined: () => "Ended: it crashes engines.",
  deadline_hopeless: () => "Refused: it takes longer than there is time.",
  fork_differs: () => "Refused: its prompt is not the one it should share.",
  prompt_empty: () => "Refused: its prompt is empty.",
  context_exceeded: () => "Refused: prompt and output exceed the context.",
  never_fits: () => "Refused: it needs more blocks than there are.",
  pins_full: () => "Refused: more blocks would be pinned than may be.",
  queue_full: () => "Refused: the queue was full.",
  over_share: () => "Refused: the queue was full, and its key had more than its share of it.",
  duplicate_id: () => "Refused: its id is in use.",
};

/** The names of the parts of a request's time, in the order in which they usually come. */
export const PARTS = {
  received: "received: read, checked, tokenised",
  queued: "queued",
  prefill: "prefill: the prompt is computed",
  decode: "decode: the output is computed",
  preempted: "preempted",
  delivered: "delivered: on its way to the client",
};

/** Questions about a request, with what tells the events that answer each. */
export const QUESTIONS = [
  ["Why did it wait?", (event) => event.startsWith("waits"), "It did not wait for anything."],
  ["Who preempted it?",
    (event) => event.startsWith("preempted") || ["swapped_out", "engine_restarted"].includes(event),
    "Nobody."],
  ["Why was no more of its prompt cached?", (event) => event.startsWith("miss"),
    "All that could be cached was."],
];

/** Return an event in words. */
export function sentence({ event, number, other }) {
  const words = REASONS[event];
  return words ? words(number ?? 0, other ? ` ${other}` : "") : event.replaceAll("_", " ");
}

function behind(by) {
  return by && `, behind${by}`;
}

function paceOf(by) {
  return by ? `, so that${by} keeps its target` : ", so that running outputs keep their pace";
}

function forWhom(by) {
  return by && ` for${by}`;
}
