// What the tables of the catalogue show: a column is {key, label, value(row), shown?(row), text?}.

/** @typedef {{key: string, label: string, value: (row: any) => any, shown: (row: any) => any, text: boolean, wraps?: boolean}} Column */

/** The name that identifies a row. @param {string} kind @param {any} row @returns {string} */
export const nameOf = (kind, row) => (kind === "links" ? row.between.join(" – ") : row.name);

/** What a filter looks through. @param {string} kind @param {any} row @returns {string} */
export function wordsOf(kind, row) {
  const words =
    kind === "links"
      ? [...row.between, ...row.source]
      : kind === "profiles"
        ? [row.name, row.title, row.kind, row.framework, row.source, ...row.gpus]
        : [row.name, ...row.aliases, row.vendor, row.architecture, row.form, row.family, row.publisher, row.provider, row.place, row.place_zh];
  return words.filter(Boolean).join(" ").toLowerCase();
}

/** @param {string} kind @param {any} texts @returns {Column[]} */
export function columnsOf(kind, { t, language, amount, billions }) {
  const column = (key, value, shown, text = false) => ({ key, label: t(`column.${key}`), value, shown: shown ?? ((row) => amount(value(row))), text });
  const words = (key, value) => column(key, value, value, true);
  if (kind === "gpus") {
    const peak = (row) => row.dense_tflops.bf16 ?? row.dense_tflops.fp16;
    return [
      words("name", (row) => row.name),
      words("architecture", (row) => row.architecture),
      column("year", (row) => row.year, (row) => row.year ?? "-"),
      column("peak_16", peak, (row) => amount(peak(row)) + (row.dense_tflops.bf16 === null ? " *" : "")),
      column("peak_fp8", (row) => row.dense_tflops.fp8),
      column("memory_gib", (row) => row.memory_gib),
      column("memory_gb_per_s", (row) => row.memory_gb_per_s),
      column("link_gb_per_s", (row) => row.link?.gb_per_s_both_ways ?? null),
      column("tdp_w", (row) => row.tdp_w),
      column("usd_per_hour", (row) => row.usd_per_hour),
    ];
  }
  if (kind === "models") {
    return [
      words("name", (row) => row.name),
      words("publisher", (row) => row.publisher),
      column("parameters", (row) => row.parameters.total, (row) => billions(row.parameters.total)),
      column("active", (row) => row.parameters.active, (row) => (row.model.moe ? billions(row.parameters.active) : "-")),
      column("layers", (row) => row.model.layers),
      column("hidden", (row) => row.model.hidden),
      column("heads", (row) => row.model.heads, (row) => `${row.model.heads}/${row.model.kv_heads}`),
      column("ffn_hidden", (row) => row.model.ffn_hidden),
      column("vocab", (row) => row.model.vocab),
      column("experts", (row) => row.model.moe?.experts ?? null, (row) => (row.model.moe ? t("catalogue.top", { experts: row.model.moe.experts, top: row.model.moe.top_k }) : "-")),
    ];
  }
  if (kind === "regions") {
    return [
      words("name", (row) => row.name),
      words("provider", (row) => row.provider),
      words("place", (row) => (language === "zh" && row.place_zh ? row.place_zh : row.place)),
      column("lat", (row) => row.lat),
      column("lon", (row) => row.lon),
      column("carbon", (row) => row.carbon_g_per_kwh),
      column("egress", (row) => row.egress_usd_per_gb),
    ];
  }
  if (kind === "profiles") {
    return [
      words("name", (row) => row.name),
      words("profile_of", (row) => t(`catalogue.profile_kind.${row.kind}`)),
      words("framework", (row) => row.framework ?? "-"),
      words("measured", (row) => (row.measured ? t("yes") : t("catalogue.no"))),
      column("fitted", (row) => row.fitted),
      column("coefficients", (row) => row.coefficients),
      { ...words("title", (row) => row.gpus.join(", ") || row.title), wraps: true },
    ];
  }
  return [
    words("between", (row) => nameOf("links", row)),
    column("rtt_ms", (row) => row.rtt_ms ?? null),
    column("gbps", (row) => row.gbps ?? null),
    column("flow_gbps", (row) => row.flow_gbps ?? null),
    column("flows", (row) => row.flows ?? null),
    words("source", (row) => row.source.join(", ")),
  ];
}
