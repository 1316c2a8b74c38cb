import { useMemo } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { usePart } from "../lib/requests.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";

/** Which stages and replicas each zone holds (/places); asked anew only when way, zones or model change, not with each link. */
export function usePlaces() {
  const { language } = useText();
  const { body, way } = useAnswers();
  const { fields } = useScenario();
  const key = JSON.stringify([way, fields?.strategy, fields?.model, fields?.job, fields?.cluster?.zones]);
  const question = useMemo(() => body, [key, body === null]);
  return usePart("places", question, language).answer;
}
