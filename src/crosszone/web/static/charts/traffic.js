// Bars of communication: seconds busy and exposed, and bytes on a scale of powers, since they differ a thousandfold.

/** @typedef {{name: string, colour: string, bytes_per_step: number, busy_s: number, exposed_s: number}} Row */

const BAR = 9;

function base(rows, tokens) {
  return {
    grid: { left: 8, right: 20, top: 6, bottom: 6, outerBoundsMode: "same" },
    yAxis: {
      type: "category", inverse: true, data: rows.map((row) => row.name), axisTick: { show: false }, axisLine: { lineStyle: { color: tokens.line } },
      axisLabel: { color: tokens.text, fontSize: 11, lineHeight: 13, width: 132, overflow: "break" },
    },
  };
}

const scale = (tokens) => ({ axisLabel: { color: tokens.quiet, fontSize: 11, hideOverlap: true }, splitLine: { lineStyle: { color: tokens["line-soft"] } } });

/** Seconds of a step: pale while the link is busy, full where the step waits for it. @param {Row[]} rows @param {{busy: string, exposed: string}} words @param {Record<string, string>} tokens */
export function timeOption(rows, words, tokens) {
  const bars = (name, field, opacity) => ({
    name, type: "bar", barWidth: BAR, barGap: "10%", data: rows.map((row) => ({ value: row[field], itemStyle: { color: row.colour, opacity } })),
  });
  return {
    ...base(rows, tokens),
    xAxis: { type: "value", ...scale(tokens) },
    tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, confine: true },
    series: [bars(words.busy, "busy_s", 0.38), bars(words.exposed, "exposed_s", 1)],
  };
}

/** GB of a step. @param {Row[]} rows @param {{gb: string}} words @param {Record<string, string>} tokens */
export function volumeOption(rows, words, tokens) {
  return {
    ...base(rows, tokens),
    xAxis: { type: "log", min: ({ min }) => 10 ** Math.floor(Math.log10(min) - 0.3), ...scale(tokens) },
    tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, confine: true },
    series: [{ name: words.gb, type: "bar", barWidth: BAR + 2, data: rows.map((row) => ({ value: row.bytes_per_step ? row.bytes_per_step / 1e9 : null, itemStyle: { color: row.colour } })) }],
  };
}
