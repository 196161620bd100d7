// Numbers as people read them.

const NUMBERS = new Intl.NumberFormat("en");
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Return a number of bytes in the largest unit of which there is at least one. */
export function bytes(count) {
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < BYTES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${BYTES[unit]}`;
}

/** Return milliseconds with a unit, three digits or so. */
export function duration(ms) {
  if (ms >= 100_000) return `${number(Math.round(ms / 1000))} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms >= 100 ? ms.toFixed(0) : ms.toFixed(1)} ms`;
}

/** Return a whole number with its thousands apart. */
export function number(value) {
  return NUMBERS.format(value);
}

/** Return a number with its noun, as in "1 token" and "2 tokens". */
export function counted(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Return a share from 0 to 1 in percent. */
export function percent(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}
