// What a model held and did at one moment, as the events of `v1/live` tell it.

export const FIRST_SET = 16;

export class LiveState {
  constructor() {
    this.t = 0;
    this.shape = { states: [], num_blocks: 0, num_host_blocks: 0, block_size: 0 };
    this.codes = new Int32Array(0);
    this.since = new Float64Array(0);
    this.sets = new Map();
    this.requests = new Map();
    this.figures = null;
  }

  /** Return a copy that later events leave as it is. */
  copy() {
    const copy = new LiveState();
    Object.assign(copy, this);
    copy.codes = this.codes.slice();
    copy.since = this.since.slice();
    copy.sets = new Map(this.sets);
    copy.requests = new Map([...this.requests].map(([n, each]) =>
      [n, { ...each, spans: each.spans.slice() }]));
    return copy;
  }

  /** Take in a picture, or changes since the last event. */
  apply(event) {
    this.t = event.t;
    this.figures = event.figures;
    const isPicture = event.type === "picture";
    if (isPicture) this.begin(event);
    for (const each of isPicture ? event.requests : event.entered) {
      this.requests.set(each.n, { ...each, phase: "", computed: 0, outputs: 0, preemptions: 0,
        why: null, times: null, spans: [] });
    }
    for (const each of event.progress) this.note(each);
    for (const [code, numbers] of event.sets) this.sets.set(code, numbers);
    this.put(event.runs, isPicture ? NaN : event.t);
    if (isPicture) this.age(event.ages);
    for (const n of event.left ?? []) this.leave(n);
  }

  begin({ states, num_blocks, num_host_blocks, block_size }) {
    const size = num_blocks + num_host_blocks;
    this.shape = { states, num_blocks, num_host_blocks, block_size };
    this.codes = new Int32Array(size);
    this.since = new Float64Array(size).fill(NaN);
    this.sets = new Map();
    this.requests = new Map();
  }

  note([n, phase, computed, outputs, preemptions, why, times]) {
    const request = this.requests.get(n);
    if (request.phase !== phase) request.spans.push([phase, request.phase ? this.t : NaN]);
    Object.assign(request, { phase, computed, outputs, preemptions, why: why ?? request.why,
      times });
  }

  put(runs, t) {
    for (let index = 0; index < runs.length; index += 3) {
      const [first, end] = [runs[index], runs[index] + runs[index + 1]];
      this.codes.fill(runs[index + 2], first, end);
      this.since.fill(t, first, end);
    }
  }

  age(ages) {
    let first = 0;
    for (let index = 0; index < ages.length; index += 2) {
      const end = first + ages[index];
      if (ages[index + 1] >= 0) this.since.fill(this.t - ages[index + 1], first, end);
      first = end;
    }
  }

  leave(n) {
    this.requests.delete(n);
    for (const [code, numbers] of this.sets) if (numbers.includes(n)) this.sets.delete(code);
  }

  /** Return what a block holds: the name of its state and the requests that hold it. */
  block(id) {
    const code = this.codes[id];
    const holders = (this.sets.get(code) ?? []).map((n) => this.requests.get(n)).filter(Boolean);
    const held = holders.length > 1 ? "shared" : "in use";
    return { state: code < FIRST_SET ? this.shape.states[code] : held, holders,
      since: this.since[id] };
  }
}
