// What the map writes on zones and links.
import { useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { runs } from "./map-data.js";

/** `{zone, lines, pairLabel}`: data of charts/map.js with its words. */
export function useMapWords() {
  const texts = useText();
  return useMemo(() => {
    const { t, label, amount, language } = texts;
    const gigabytes = (bytes) => amount(bytes / 1e9);
    const km = (link) => (link.km === null ? [] : [`${amount(Math.round(link.km))} km`]);
    const rates = ({ gbps, gbps_back: back }) => (gbps === back ? amount(gbps) : `${amount(gbps)} / ${amount(back)}`);
    const road = (link) => [`${amount(link.rtt_ms.expected)} ms`, `${rates(link)} Gbit/s`, ...km(link)].join(" · ");
    const held = (place, stageCount) => {
      if (!place?.used) return place ? [t("plan.map.idle")] : [];
      const stages = stageCount > 1 ? t("plan.map.holds_stages", { count: place.stages.length, stages: runs(place.stages) }) : "";
      return [[stages, t("plan.map.holds_replicas", { count: amount(place.replicas) })].filter(Boolean).join(" · ")];
    };
    const place = (zone) => (language === "zh" && zone.place_zh ? zone.place_zh : zone.place) ?? zone.region;
    const sent = (line) =>
      [
        `${line.link}: ${t("plan.map.gb_step", { gb: gigabytes(line.bytes_per_step) })}`,
        ...Object.entries(line.kinds).map(([kind, bytes]) => `  ${label(`kind_${kind}`)} ${gigabytes(bytes)} GB`),
        `  ${t("plan.map.busy", { busy: amount(line.busy_s), exposed: amount(line.exposed_s), used: amount(line.used_gbps) })}`,
      ].join("\n");
    const tip = (pair) =>
      [
        `${pair.a} – ${pair.b}`, `${road(pair.link)} (${label(`origin_${pair.link.origins.gbps}`)})`,
        ...[pair.there, pair.back].filter(Boolean).map(sent), ...(pair.bytes || !pair.known ? [] : [t("plan.map.unused")]),
      ].join("\n");
    return {
      zone: (zone, holds, stageCount) => ({
        name: zone.name, lat: zone.lat, lon: zone.lon, gpus: zone.gpus,
        lines: [zone.name, t("plan.map.gpu_count", { count: amount(zone.gpus) }), ...held(holds, stageCount)],
        tip: [zone.name, place(zone), ...zone.groups.map((group) => `${amount(group.count)} × ${group.gpus} ${group.gpu}`), ...held(holds, stageCount)].filter(Boolean).join("\n"),
      }),
      lines: (pair) =>
        pair.bytes
          ? [[pair.there, pair.from, pair.to], [pair.back, pair.to, pair.from]]
              .filter(([line]) => line)
              .map(([line, from, to]) => ({ from, to, bytes: line.bytes_per_step, kind: line.dominant, tip: tip(pair) }))
          : [{ from: pair.from, to: pair.to, bytes: 0, kind: null, tip: tip(pair) }],
      pairLabel: (pair) => {
        const { there, back } = pair;
        const same = there?.bytes_per_step === back?.bytes_per_step;
        const lines = !pair.bytes
          ? [road(pair.link)]
          : same
            ? [t("plan.map.each_way", { gb: gigabytes(there.bytes_per_step) }), road(pair.link)]
            : [...[[there, pair.b], [back, pair.a]].filter(([line]) => line).map(([line, to]) => t("plan.map.one_way", { gb: gigabytes(line.bytes_per_step), to })), road(pair.link)];
        return { from: pair.from, to: pair.to, bytes: pair.bytes, lines, tip: tip(pair) };
      },
    };
  }, [texts]);
}
