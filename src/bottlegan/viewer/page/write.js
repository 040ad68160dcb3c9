// Writing the whole slide, while one goes on looking.

import { getJson, post } from "./api.js";

const $ = (id) => document.getElementById(id);
const PAUSE = 300;

/** Suggest a name that says what the slide was brought to. */
export function suggestName(name, target) {
  const stem = name.replace(/\.[^.]+$/, "");
  const said = target.key === "reference" ? "normalized" : target.label.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  $("target-name").value = `${stem}-${said.replace(/^-|-$/g, "")}.tiff`;
}

export function wireWriting(state) {
  let job = null;
  $("write").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const body = { to: state.to, name: $("target-name").value.trim(), forced: state.forced };
      job = (await post(`api/slides/${state.slide}/write`, body)).job;
    } catch (error) {
      $("job-text").textContent = error.message;
      return;
    }
    $("job-text").textContent = "";
    show(true);
    follow(job);
  });
  $("stop").addEventListener("click", () => post(`api/jobs/${job}/stop`, {}));

  async function follow(number) {
    const said = await getJson(`api/jobs/${number}`);
    $("progress").value = said.share;
    if (said.state === "running") {
      setTimeout(() => follow(number), PAUSE);
      return;
    }
    show(false);
    $("job-text").textContent = said.text;
  }

  function show(running) {
    $("job").hidden = !running;
    $("write").querySelector("button").disabled = running;
  }
}
