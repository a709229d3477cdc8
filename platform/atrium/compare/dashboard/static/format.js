// Numbers, times and shares as people read them.

export const DASH = "–";
const GROUPED = new Intl.NumberFormat("en-US"); // toLocaleString would make one for every number

/** Three significant digits; a dash for what is unknown. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return DASH;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(2).replace("e", " e");
  if (Number.isInteger(value)) return GROUPED.format(value);
  if (size >= 1000) return GROUPED.format(Math.round(value));
  return String(Number(value.toPrecision(3)));
}

/** How many runs of an arm diverged and collapsed, with exact intervals. */
export const ratesText = (rates) =>
  Object.entries(rates)
    .map(([what, words]) => `${what} ${words}`)
    .join(", ");

/** A share in percent with one decimal. */
export function percent(value) {
  return value === null || value === undefined || Number.isNaN(value) ? DASH : (100 * value).toFixed(1);
}

const COUNTS = [
  { least: 1e9, size: 1e9, unit: "B" },
  { least: 1e6, size: 1e6, unit: "M" },
  { least: 1e4, size: 1e3, unit: "k" },
];

/** A large count, such as 1.2M. */
export function count(value) {
  if (value === null || value === undefined) return DASH;
  for (const { least, size, unit } of COUNTS) {
    if (value >= least) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return GROUPED.format(value);
}

/** A span of time, such as 8 s, 3 min 25 s or 2 h 03 min. */
export function duration(seconds) {
  if (!seconds && seconds !== 0) return DASH;
  const whole = Math.max(Math.round(seconds), 0);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

const AGES = [
  { least: 2 * 86400, size: 86400, unit: "days" },
  { least: 3600, size: 3600, unit: "h" },
  { least: 60, size: 60, unit: "min" },
];

/** How long ago something was. */
export function age(seconds) {
  if (seconds < 60) return "just now";
  for (const { least, size, unit } of AGES) {
    if (seconds >= least) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return "just now";
}

/** A moment as date and time here. */
export function moment(seconds) {
  if (!seconds) return DASH;
  const date = new Date(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

/** The part of a run's name that tells it apart: algorithm, seed and digits, without experiment and time. */
export function shortName(name) {
  const run = name.slice(name.indexOf("/") + 1);
  return run.replace(/^\d{8}-\d{6}-/, "") || run;
}

/** A number of things, such as `1 run` or `2 runs`. */
export const plural = (num, noun) => `${num} ${noun}${num === 1 ? "" : "s"}`;

/** The interval over problems of a score in percent; nothing where there is none. */
export const intervalText = ({ interval_over_problems: interval }) => interval?.map(percent).join(" – ");
