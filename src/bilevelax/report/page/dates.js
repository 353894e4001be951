// A horizontal axis of days since 1970, and amounts as people write them.

const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
const WEEKDAYS = "Sun Mon Tue Wed Thu Fri Sat".split(" ");
const dayAt = value => new Date(Math.round(value * 1440) * 60000);

function sayDate(value) {
  const at = dayAt(value), clock = at.toISOString().slice(11, 16);
  return `${WEEKDAYS[at.getUTCDay()]} ${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]} ${at.getUTCFullYear()}` + (clock === "00:00" ? "" : ` ${clock}`);
}

// The first of months where they are enough, else days.
function dateTicks(low, high, wanted) {
  const first = dayAt(low), last = dayAt(high), months = 12 * (last.getUTCFullYear() - first.getUTCFullYear()) + last.getUTCMonth() - first.getUTCMonth();
  const ticks = [];
  if (months >= 3) {
    const step = [1, 2, 3, 6, 12, 24, 60, 120].find(s => months / s <= wanted) || 240;
    for (let m = Math.ceil((12 * first.getUTCFullYear() + first.getUTCMonth()) / step) * step; ; m += step) {
      const day = Date.UTC(Math.floor(m / 12), m % 12) / 86400000;
      if (day > high) return ticks;
      if (day >= low) ticks.push(day);
    }
  }
  const step = [1, 2, 7, 14, 28].find(s => (high - low) / s <= wanted) || 56;
  for (let day = Math.ceil(low); day <= high; day += step) ticks.push(day);
  return ticks;
}

function tickDate(low, high) {
  return value => {
    const at = dayAt(value), month = MONTHS[at.getUTCMonth()];
    if (high - low < 92) return `${at.getUTCDate()} ${month}`;
    return at.getUTCMonth() === 0 || high - low > 1500 ? `${month} ${at.getUTCFullYear()}` : month;
  };
}

function amount(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value), digits = size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : Math.min(12, 2 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}
