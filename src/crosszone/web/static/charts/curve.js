// A curve over the steps of a run, with the band that was predicted behind it.

/**
 * @param {[number, number | null][]} points step and value
 * @param {{low: number, expected: number, high: number} | null} band
 * @param {{name: string, step: string, predicted: string, written: (value: number) => string}} words
 * @param {Record<string, string>} tokens
 */
export function curveOption(points, band, words, tokens) {
  const values = points.map(([, value]) => value).filter((value) => value !== null);
  const all = band ? [...values, band.expected] : values;
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const spread = most - least > 1e-9 * Math.abs(most) ? most - least : 0; // less is what rounding leaves
  const room = (spread || Math.abs(most) || 1) * 0.08;
  return {
    grid: { left: 8, right: 16, top: 14, bottom: 8, outerBoundsMode: "same" },
    tooltip: {
      trigger: "axis", confine: true,
      formatter: ([{ data: [step, value] }]) => `${words.step} ${step}\n${words.name}: ${value === null ? "-" : words.written(value)}`,
    },
    xAxis: {
      type: "value", name: words.step, nameLocation: "middle", nameGap: 24, nameTextStyle: { color: tokens.quiet }, min: "dataMin", max: "dataMax", minInterval: 1,
      axisLabel: { color: tokens.quiet, hideOverlap: true }, axisLine: { lineStyle: { color: tokens.line } }, splitLine: { show: false },
    },
    yAxis: {
      type: "value", scale: true, min: least - room, max: most + room,
      axisLabel: { color: tokens.quiet, formatter: (value) => words.written(value), showMinLabel: false, showMaxLabel: false }, splitLine: { lineStyle: { color: tokens["line-soft"] } },
    },
    series: [{
      type: "line", name: words.name, data: points, showSymbol: points.length < 3, symbolSize: 6, sampling: "lttb",
      lineStyle: { color: tokens.accent, width: 1.6 }, itemStyle: { color: tokens.accent },
      markArea: band && { silent: true, itemStyle: { color: tokens["good-soft"] }, data: [[{ yAxis: band.low }, { yAxis: band.high }]] },
      markLine: band && {
        silent: true, symbol: "none", lineStyle: { color: tokens.good, type: "dashed", width: 1.2 },
        label: { position: "insideEndTop", color: tokens.good, formatter: words.predicted }, data: [{ yAxis: band.expected }],
      },
    }],
  };
}
