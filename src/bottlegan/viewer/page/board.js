// Drawings and tables of a federation or of a lab's drift, asked for again and again: what has changed is shown anew.

import { getJson } from "./api.js";

const $ = (id) => document.getElementById(id);
const PAUSE = 2000;
const NUMBER = /^-?[\d.,]+$|^-$/;

let version = 0;

async function follow() {
  const board = await getJson("api/board");
  if (board.version !== version) show(board);
  version = board.version;
  $("changed").textContent = board.state ? "" : `last change ${tellAgo(Date.now() / 1000 - board.changed)} ago`;
}

function show(board) {
  document.title = `${board.title} · BottleGAN`;
  $("name").textContent = board.title;
  $("lead").textContent = board.lead;
  $("lead").dataset.verdict = board.state;
  $("share").hidden = board.share === null;
  $("share").value = board.share ?? 0;
  const places = [...document.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  $("sections").replaceChildren(...board.sections.map(makeSection));
  document.querySelectorAll(".scroll").forEach((each, i) => { each.scrollLeft = places[i] ?? 0; });
  document.body.dataset.state = "settled";
}

function makeSection({ title, caption, markup, columns, rows }) {
  const section = make("section");
  const scroll = make("div", "", "scroll");
  scroll.tabIndex = 0; // so that the keyboard can scroll it
  scroll.setAttribute("role", "group");
  scroll.setAttribute("aria-label", title);
  if (markup || !columns.length) scroll.classList.add("drawing");
  if (markup) scroll.append(parse(markup));
  else if (!columns.length) scroll.append(...rows.flat().map(({ markup: drawn }) => parse(drawn)));
  else scroll.append(makeTable(columns, rows));
  section.append(make("h2", title), make("p", caption, "note"), scroll);
  return section;
}

function makeTable(columns, rows) {
  const table = make("table");
  const isNumber = columns.map((_, i) => i > 0 && rows.every((row) => typeof row[i] === "string" && NUMBER.test(row[i] || "-")));
  const head = table.createTHead().insertRow();
  columns.forEach((name, i) => {
    const cell = make(name ? "th" : "td", name, isNumber[i] ? "number" : "");
    if (name) cell.scope = "col";
    head.append(cell);
  });
  const body = table.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    cells.forEach((content, i) => {
      const cell = make(i ? "td" : "th", "", isNumber[i] ? "number" : "");
      if (!i) cell.scope = "row";
      if (typeof content === "string") cell.textContent = content;
      else cell.append(parse(content.markup));
      row.append(cell);
    });
  }
  return table;
}

/** Return drawings that our server made; what others wrote is escaped in them, and no script in them would run. */
function parse(markup) {
  const part = document.createDocumentFragment();
  part.append(...new DOMParser().parseFromString(markup, "text/html").body.childNodes);
  return part;
}

function tellAgo(seconds) {
  const [size, unit] = seconds < 90 ? [1, "s"] : seconds < 5400 ? [60, "min"] : [3600, "h"];
  return `${Math.max(0, Math.round(seconds / size))} ${unit}`;
}

function make(tag, text = "", name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

async function keepFollowing() {
  try {
    await follow();
  } catch (error) {
    $("changed").textContent = error.message;
  }
  setTimeout(keepFollowing, PAUSE);
}

keepFollowing();
