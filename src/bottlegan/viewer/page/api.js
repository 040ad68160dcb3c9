// What the server answers. All addresses are relative, so each carries the token of the page's own.

function ask(path, options) {
  return check(fetch(path, { cache: "no-store", ...options }));
}

async function check(pending) {
  const answer = await pending;
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Error(said.error || `the server answered ${answer.status}`);
}

export async function getJson(path, options) {
  return (await ask(path, options)).json();
}

/** Return the answer to a request that was sent before this script was there. */
export async function readJson(pending) {
  return (await check(pending)).json();
}

export async function getBytes(path, options) {
  return new Uint8Array(await (await ask(path, options)).arrayBuffer());
}

export async function getImage(path) {
  const blob = await (await ask(path)).blob();
  return createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
}

export function post(path, body) {
  const headers = { "content-type": "application/json" };
  return getJson(path, { method: "POST", headers, body: JSON.stringify(body) });
}
