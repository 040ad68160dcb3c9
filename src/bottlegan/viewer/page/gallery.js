// All slides at a glance, before and after, in the server's order: slides that need attention come first.

import { getJson } from "./api.js";

const $ = (id) => document.getElementById(id);
const PAUSE = 700;
const VERDICTS = ["refused", "uncertain", "good", "known"];

const cards = new Map(); // by the slide's number
let entries = [];
let only = ""; // a verdict, or all

async function start() {
  const session = await getJson("api/session");
  $("to").replaceChildren(...session.targets.map(({ key, label }) => new Option(label, key)));
  $("to").addEventListener("change", () => entries.forEach(showAfter));
  for (const radio of document.getElementsByName("mode")) radio.addEventListener("change", () => setMode(radio.value));
  document.addEventListener("keydown", (event) => {
    const mode = { b: "before", d: "both", a: "after" }[event.key];
    if (mode && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.matches("select")) setMode(mode);
  });
  await follow();
}

/** Ask again until each slide has its verdict. */
async function follow() {
  entries = await getJson("api/gallery");
  show();
  if (entries.some((entry) => !entry.verdict)) setTimeout(() => follow().catch(fail), PAUSE);
}

function show() {
  const waiting = entries.filter((entry) => !entry.verdict).length;
  const count = `${entries.length} ${entries.length === 1 ? "slide" : "slides"}`;
  $("state").textContent = waiting ? `${count}, ${waiting} not fitted yet …` : `${count}. Slides that need attention come first.`;
  document.body.dataset.state = waiting ? "loading" : "settled";
  showFilters();
  const wanted = entries.map((entry) => {
    if (!cards.has(entry.slide)) cards.set(entry.slide, makeCard(entry));
    fill(entry);
    return cards.get(entry.slide);
  });
  // What stands where it should is left alone, so that nobody loses the focus.
  wanted.forEach((card, i) => {
    if ($("cards").children[i] !== card) $("cards").insertBefore(card, $("cards").children[i] ?? null);
  });
}

function showFilters() {
  const counts = VERDICTS.map((verdict) => [verdict, entries.filter((entry) => entry.verdict === verdict).length]);
  const wanted = [["", entries.length], ...counts.filter(([, count]) => count)];
  const said = JSON.stringify([wanted, only]);
  if ($("filters").dataset.said === said) return;
  $("filters").dataset.said = said;
  $("filters").replaceChildren(...wanted.map(([verdict, count]) => {
    const button = make("button", `${verdict || "all"} ${count}`);
    button.type = "button";
    button.setAttribute("aria-pressed", String(verdict === only));
    button.addEventListener("click", () => { only = verdict; show(); });
    return button;
  }));
}

function makeCard(entry) {
  const item = make("li");
  const link = make("a", "", "card");
  const pair = make("div", "", "pair");
  const before = make("img");
  before.loading = "lazy";
  before.alt = `${entry.name} as scanned`;
  before.addEventListener("error", () => before.replaceWith(make("p", "cannot be read")));
  before.src = `api/slides/${entry.slide}/thumbnail`;
  pair.append(before, make("p", "fitting …"));
  const about = make("div", "", "about");
  about.append(make("h2", entry.name), make("span", "", "verdict"), make("p", "", "note"));
  link.append(pair, about);
  item.append(link);
  return item;
}

function fill(entry) {
  const card = cards.get(entry.slide);
  card.hidden = Boolean(only) && entry.verdict !== only;
  const badge = card.querySelector(".verdict");
  if (badge.dataset.verdict === entry.verdict) return;
  badge.dataset.verdict = entry.verdict;
  badge.textContent = entry.verdict || "fitting …";
  card.querySelector(".note").textContent = entry.reason ?? "";
  showAfter(entry);
}

function showAfter(entry) {
  const card = cards.get(entry.slide);
  const to = $("to").value;
  card.querySelector("a").href = `view#${new URLSearchParams({ slide: entry.slide, to })}`;
  if (!entry.verdict) return;
  let after;
  if (!entry.usable) {
    after = make("p", "not mapped");
  } else {
    after = make("img");
    after.loading = "lazy";
    after.alt = `${entry.name} mapped`;
    after.src = `api/slides/${entry.slide}/thumbnail?${new URLSearchParams({ to })}`;
  }
  card.querySelector(".pair").lastChild.replaceWith(after);
}

function setMode(mode) {
  $("cards").dataset.mode = mode;
  for (const radio of document.getElementsByName("mode")) radio.checked = radio.value === mode;
}

function make(tag, text = "", name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

const fail = (error) => { $("state").textContent = error.message; };

start().catch(fail);
