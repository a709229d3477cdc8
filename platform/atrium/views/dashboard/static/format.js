// Formatting of numbers, times and shares.

export const DASH = "–";
const MINUS = "−";
const GROUPED = new Intl.NumberFormat("en-US"); // toLocaleString would create a formatter for each number

/** Format a number with three significant digits; a dash if it is unknown. */
export function number(value) {
  if (value == null || Number.isNaN(value)) return DASH;
  if (value < 0) return MINUS + number(-value);
  if (!Number.isFinite(value)) return "∞";
  if (value !== 0 && (value < 0.001 || value >= 1e7)) return value.toExponential(2).replace("e", " e");
  if (Number.isInteger(value) || value >= 1000) return GROUPED.format(Math.round(value));
  return String(Number(value.toPrecision(3)));
}

/** Format a share in percent with one decimal. */
export const percent = (value) => valueText(value ?? null, "share");

const COUNTS = [
  { least: 1e9, size: 1e9, unit: "B" },
  { least: 1e6, size: 1e6, unit: "M" },
  { least: 1e4, size: 1e3, unit: "k" },
];

/** Format a large count, such as 1.2M. */
export function count(value) {
  if (value == null) return DASH;
  const found = COUNTS.find(({ least }) => value >= least);
  if (!found) return GROUPED.format(value);
  return `${Number((value / found.size).toPrecision(3))}${found.unit}`;
}

/** Format a duration, such as 8 s, 3:25 or 2:03:25. */
export function duration(seconds) {
  if (!seconds && seconds !== 0) return DASH;
  const whole = Math.max(Math.round(seconds), 0);
  if (whole < 60) return `${whole} s`;
  const two = (value) => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const rest = two(whole % 60);
  return hours ? `${hours}:${two(minutes)}:${rest}` : `${minutes}:${rest}`;
}

/** Return a number of a document; numbers that JSON cannot represent are objects. */
export const known = (value) =>
  value?.number === undefined ? value : Number(value.number.replace("inf", "Infinity"));

/** Format a number with a fixed number of decimals; ties round to even, as in Python. */
function fixed(value, digits) {
  const text = value.toFixed(digits);
  const isTie = (value * 2 ** (digits + 1)) % 2 === 1;
  return isTie && /[13579]$/.test(text) ? (value - 10 ** -digits / 4).toFixed(digits) : text;
}

const SIZES = ["B", "kB", "MB", "GB", "TB"];
const BY_UNIT = {
  share: (value) => fixed(100 * value, 1),
  points: (value) => fixed(100 * value, 1),
  p: (value) => (value < 0.001 ? "<0.001" : fixed(value, 3)),
  fraction: (value) => fixed(value, 2),
  ratio: (value) => fixed(value, 3),
  bound: (value) => fixed(value, 6),
  count: (value) => GROUPED.format(Number(fixed(value, 0))),
  seconds: (value) => (value >= 10 ? duration(value) : `${fixed(value, 1)} s`),
  bytes: (value) => {
    const power = Math.max(Math.min(Math.floor(Math.log10(value * 1.0005) / 3), SIZES.length - 1), 0);
    return `${Number((value / 1000 ** power).toPrecision(3))} ${SIZES[power]}`;
  },
  "": (value) => {
    if (value !== 0 && (value < 0.001 || value >= 100_000))
      return value.toExponential(2).replace(/([+-])(\d)$/, "$10$2");
    return value >= 1000 ? fixed(value, 0) : String(Number(value.toPrecision(3)));
  },
};

/** Format a number of a document with the digits of its unit, as in `document/formatting.py`. */
export function valueText(given, unit, isSigned = false) {
  const value = known(given);
  if (value === null || Number.isNaN(value)) return DASH;
  const text = Number.isFinite(value) ? BY_UNIT[unit](Math.abs(value)) : "∞";
  if (/^[0.]+( s| B)?$/.test(text)) return text;
  return (value < 0 ? MINUS : isSigned ? "+" : "") + text;
}

const AGES = [
  { least: 2 * 86400, size: 86400, unit: "days" },
  { least: 3600, size: 3600, unit: "h" },
  { least: 60, size: 60, unit: "min" },
];

/** Format the time since an event. */
export function age(seconds) {
  const found = AGES.find(({ least }) => seconds >= least);
  return found ? `${Math.floor(seconds / found.size)} ${found.unit} ago` : "just now";
}

/** Format a point in time as local date and time. */
export function moment(seconds) {
  // Swedish dates have the format of ISO 8601.
  return seconds ? new Date(seconds * 1000).toLocaleString("sv").slice(0, 16) : DASH;
}

/** Return the distinguishing part of a run's name: algorithm, seed and digits, without experiment and time. */
export function shortName(name) {
  const run = name.slice(name.indexOf("/") + 1);
  return run.replace(/^\d{8}-\d{6}-/, "") || run;
}

/** Return a count with its noun, such as `1 run` or `2 runs`. */
export const plural = (num, noun) => `${num} ${noun}${num === 1 ? "" : "s"}`;
