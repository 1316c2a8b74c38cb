// Work that a button starts: one thing at a time, and what there is to say of it.
import { useState } from "./dom.js";
import { useText } from "./text.js";

/**
 * @returns {{busy: boolean, said: {wrong?: boolean, words: any, id?: string, link?: any} | null, setSaid: (said: any) => void, during: (work: () => Promise<any>) => Promise<void>}}
 */
export function useWork() {
  const { t } = useText();
  const [said, setSaid] = useState(null);
  const [busy, setBusy] = useState(false);
  const during = async (work) => {
    setBusy(true);
    setSaid(null);
    try {
      await work();
    } catch (error) {
      setSaid({ wrong: true, words: error.notices?.[0] ? `${error.notices[0].message} ${error.notices[0].hint}` : t("failed") });
    } finally {
      setBusy(false);
    }
  };
  return { busy, said, setSaid, during };
}
