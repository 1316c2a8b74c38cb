// Ways beside each other on axes from 0 to 1.

/** Colours of the entries in order. */
export const RADAR_COLOURS = ["accent", "kind-gradients", "kind-pipeline", "kind-context", "kind-expert", "kind-sharding", "kind-local", "work-other"];

/**
 * @param {{axes: {id: string, label: string}[], entries: {name: string, label: string, values: Record<string, number | null>}[], tokens: Record<string, string>, percent: (value: number) => string}} given
 */
export function radarOption({ axes, entries, tokens, percent }) {
  const known = axes.filter(({ id }) => entries.some(({ values }) => values[id] !== null));
  const colour = (at) => tokens[RADAR_COLOURS[at % RADAR_COLOURS.length]];
  return {
    tooltip: {
      confine: true,
      formatter: ({ name, value }) => [name, ...known.map(({ label }, at) => `${label} ${value[at] === null ? "-" : percent(value[at])}`)].join("\n"),
    },
    radar: {
      center: ["50%", "53%"], radius: "66%", splitNumber: 4,
      indicator: known.map(({ label }) => ({ name: label, min: 0, max: 1 })),
      axisName: { color: tokens.text, fontSize: 11.5, lineHeight: 14, formatter: twoLines },
      axisLine: { lineStyle: { color: tokens.line } },
      splitLine: { lineStyle: { color: tokens.line } },
      splitArea: { show: false },
    },
    series: [
      {
        type: "radar",
        data: entries.map(({ label, values }, at) => ({
          name: label, value: known.map(({ id }) => values[id]), symbol: "circle", symbolSize: 4,
          lineStyle: { color: colour(at), width: at ? 1.5 : 2.5 }, itemStyle: { color: colour(at) },
          areaStyle: { color: colour(at), opacity: at ? 0 : 0.16 },
        })),
      },
    ],
  };
}

/** A long name in two lines, broken at the space nearest to its middle. */
function twoLines(name) {
  if (name.length < 14 || !name.includes(" ")) return name;
  const spaces = [...name].flatMap((sign, at) => (sign === " " ? [at] : []));
  const middle = spaces.reduce((best, at) => (Math.abs(at - name.length / 2) < Math.abs(best - name.length / 2) ? at : best));
  return `${name.slice(0, middle)}\n${name.slice(middle + 1)}`;
}
