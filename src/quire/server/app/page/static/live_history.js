// The last minutes of events, from which each moment of them can be shown again. Its memory is
// bounded: the oldest go, and whole stretches of them at once.

import { LiveState } from "./live_state.js";

const MAX_EVENTS = 1200;  // five minutes, at four a second
const PER_STRETCH = 60;
const MAX_NUMBERS = 3_000_000;

export class LiveHistory {
  constructor() {
    this.now = new LiveState();
    this.clear();
  }

  clear() {
    this.stretches = [];
    this.length = 0;
    this.weight = 0;
    this.dropped = 0;
  }

  /** Take in an event; all before a picture stays, though nothing is known of the time between. */
  add(event) {
    const last = this.stretches.at(-1);
    if (event.type === "picture" || !last || last.events.length >= PER_STRETCH) {
      const weight = this.now.codes.length * 3;
      this.stretches.push({ before: this.now.copy(), events: [], weight });
      this.weight += weight;
    }
    const weight = event.runs.length + 8 * event.progress.length + 8;
    const stretch = this.stretches.at(-1);
    stretch.events.push(event);
    stretch.weight += weight;
    this.weight += weight;
    this.length += 1;
    this.now.apply(event);
    while (this.stretches.length > 1 && (this.length > MAX_EVENTS || this.weight > MAX_NUMBERS)) {
      const { events, weight: gone } = this.stretches.shift();
      this.length -= events.length;
      this.weight -= gone;
      this.dropped += events.length;
    }
  }

  /** Return the state after the event of an index, 0 for the oldest that is kept. */
  at(index) {
    let rest = index;
    for (const { before, events } of this.stretches) {
      if (rest < events.length) {
        const state = before.copy();
        for (const event of events.slice(0, rest + 1)) state.apply(event);
        return state;
      }
      rest -= events.length;
    }
    return this.now;
  }

  /** Return the figures of the last events with their times, up to an index. */
  figures(index) {
    const found = [];
    for (const { events } of this.stretches) {
      for (const { t, figures } of events) {
        if (found.length > index) return found;
        found.push({ t, ...figures });
      }
    }
    return found;
  }
}
