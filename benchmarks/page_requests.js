// Evaluated in the page: from then on it notes what it asks the API. `settledRequests()` waits until it asks no more.
() => {
  const QUIET_MS = 500; // longer than any pause after which the page asks more
  const original = window.fetch;
  const flights = (window.flights = []);
  window.fetch = async (address, options) => {
    const path = new URL(address, location).pathname;
    if (!path.startsWith("/api/v1/")) return original(address, options);
    const flight = { path: path.slice("/api/v1/".length), start: performance.now(), end: null };
    const land = () => (flight.end ??= performance.now());
    flights.push(flight);
    options?.signal?.addEventListener("abort", land);
    const answer = await original(address, options).catch((error) => {
      land();
      throw error;
    });
    if (!answer.body) land();
    return answer.body ? new Response(answer.body.pipeThrough(new TransformStream({ flush: land })), answer) : answer;
  };
  // The paths, and the most requests that were on their way at a time.
  window.settledRequests = async () => {
    const last = () => Math.max(...flights.map(({ end }) => end ?? Infinity));
    while (!flights.length || performance.now() - last() < QUIET_MS) await new Promise((done) => setTimeout(done, 50));
    const together = ({ start }) => flights.filter((other) => other.start <= start && start < other.end).length;
    return [flights.map(({ path }) => path), Math.max(...flights.map(together))];
  };
}
