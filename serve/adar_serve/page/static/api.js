// Requests to the server: the token, errors with their messages, and server-sent events through fetch.

const TOKEN = "adar-token";

export class ServerError extends Error {
  constructor(message, status, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter; // seconds, or null
  }
}

export function setToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

async function request(address, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch(address, { ...options, headers, cache: "no-store" }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached.", 0, null);
  });
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  const message = answer.error ?? `The server answered with the status ${response.status}.`;
  throw new ServerError(message, response.status, Number(response.headers.get("retry-after")) || null);
}

/** The models, and what can be chosen for each one. */
export async function choices() {
  return (await request("explore")).json();
}

/** Run a model. Yields [name, content] of each event. */
export async function* run(model, parameters, file, signal) {
  const address = `explore/${encodeURIComponent(model)}?${new URLSearchParams(parameters)}`;
  const response = await request(address, { method: "POST", body: file, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const texts = (rest + value).split("\n\n");
    rest = texts.pop();
    yield* texts.map(parsed);
  }
}

function parsed(text) {
  const [name, data] = text.split("\n");
  return [name.replace("event: ", ""), JSON.parse(data.replace("data: ", ""))];
}
