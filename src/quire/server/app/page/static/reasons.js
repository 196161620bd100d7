// The parts of a request's time, and the questions that its events answer.

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
  ["Why did it wait?", (event) => event.startsWith("waits") || event === "late",
    "It did not wait for anything."],
  ["Was its prompt held back?", (event) => event === "paced", "No."],
  ["Who preempted it?",
    (event) => event.startsWith("preempted") || ["swapped_out", "engine_restarted"].includes(event),
    "Nobody."],
  ["Why was no more of its prompt cached?", (event) => event.startsWith("miss"),
    "All that could be cached was."],
];
