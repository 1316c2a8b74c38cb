// Memory of each stage by part against the memory of its GPU.

const COLOURS = {
  weights: "work-forward", gradients: "kind-gradients", optimizer: "work-optimizer", activations: "kind-pipeline",
  logits: "kind-expert", working: "work-recompute", buffers: "kind-sharding", base: "work-other",
};

/** @param {{stages: any[], parts: string[], tokens: Record<string, string>, words: {part: (name: string) => string, limit: string, stage: (stage: any) => string, gib: (value: number) => string}}} given */
export function memoryOption({ stages, parts, tokens, words }) {
  const limits = stages.map(({ limit }) => limit);
  return {
    tooltip: {
      trigger: "axis", axisPointer: { type: "shadow" }, confine: true,
      formatter: (rows) => [words.stage(stages[rows[0].dataIndex]), ...rows.filter(({ value }) => value).map((row) => `${row.seriesName} ${words.gib(row.value)}`)].join("\n"),
    },
    legend: { bottom: 0, itemWidth: 10, itemHeight: 10, itemGap: 10, textStyle: { color: tokens.quiet, fontSize: 11 } },
    grid: { left: 8, right: 16, top: 26, bottom: 52, containLabel: true },
    xAxis: { type: "category", data: stages.map(({ stage }) => String(stage)), axisTick: { show: false }, axisLine: { lineStyle: { color: tokens.line } }, axisLabel: { color: tokens.quiet } },
    yAxis: {
      type: "value", name: "GiB", nameTextStyle: { color: tokens.quiet }, axisLabel: { color: tokens.quiet },
      splitLine: { lineStyle: { color: tokens["line-soft"] } },
    },
    series: [
      ...parts.map((part) => ({
        type: "bar", stack: "memory", name: words.part(part), barMaxWidth: 44, itemStyle: { color: tokens[COLOURS[part] ?? "work-other"] },
        data: stages.map(({ parts: held }) => held[part]),
      })),
      {
        type: "line", name: words.limit, step: "middle", symbol: "none", lineStyle: { color: tokens.error, width: 1.5, type: "dashed" }, itemStyle: { color: tokens.error },
        data: limits, ...(new Set(limits).size === 1 ? { markLine: { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: tokens.error, width: 1.5, type: "dashed" }, data: [{ yAxis: limits[0] }] } } : {}),
      },
      {
        type: "scatter", silent: true, symbolSize: 1, itemStyle: { color: "transparent" }, tooltip: { show: false },
        data: stages.map(({ total }) => total),
        label: { show: stages.length <= 16, position: "top", fontSize: 11, formatter: ({ dataIndex }) => words.gib(stages[dataIndex].total), color: tokens.text },
      },
    ],
  };
}
