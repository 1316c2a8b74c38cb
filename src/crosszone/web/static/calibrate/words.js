// Numbers, moments and names of calibration as they are shown.
import { useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** `{pct, signed, tick}`: percent with one digit after the point, whole ones on an axis; what is not known is a dash. */
export function usePercent() {
  const { language } = useText();
  return useMemo(() => {
    const one = { minimumFractionDigits: 1, maximumFractionDigits: 1 };
    const plain = new Intl.NumberFormat(language, one);
    const sign = new Intl.NumberFormat(language, { ...one, signDisplay: "exceptZero" });
    const axis = new Intl.NumberFormat(language, { maximumFractionDigits: 1 });
    const written = (format) => (value) => (value === null || value === undefined ? "-" : `${format.format(value)} %`);
    return { pct: written(plain), signed: written(sign), tick: written(axis) };
  }, [language]);
}

/** `when(moment)`: a day, or a day and a time, as the rest of the page writes them; what is neither stays as it is. */
export function useWhen() {
  const { language } = useText();
  return useMemo(() => {
    const day = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeZone: "UTC" });
    const moment = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });
    return (/** @type {string} */ told) => {
      if (!/^\d{4}-\d\d-\d\d/.test(told) || Number.isNaN(Date.parse(told))) return told;
      return (/^\d{4}-\d\d-\d\d$/.test(told) ? day : moment).format(new Date(told));
    };
  }, [language]);
}

/**
 * Names of jobs that tell them apart: where two of a cluster are called alike, their numbers stand with them.
 * @param {{id: string, cluster: string, name: string}[]} jobs @param {boolean} [narrow] on two lines, each of them short
 */
export function jobNames(jobs, narrow = false) {
  const called = (job) => `${job.cluster} ${job.name}`;
  const number = (job) => (jobs.filter((one) => called(one) === called(job)).length > 1 ? `#${job.id}` : "");
  const joined = (words, by) => words.filter(Boolean).join(by);
  return jobs.map((job) => (narrow ? joined([joined([job.cluster, number(job)], " "), job.name], "\n") : joined([job.cluster, joined([job.name, number(job)], " ")], " · ")));
}
