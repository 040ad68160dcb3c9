// What the panel shows. Text from the server is only ever set as text.

const $ = (id) => document.getElementById(id);

function make(tag, text = "", name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

export function showTargets(session, state, chosen) {
  const rows = session.targets
    .filter((each) => each.key !== `slide:${state.slide}`)
    .map(({ key, label }) => {
      const row = make("label");
      const radio = Object.assign(document.createElement("input"), {
        type: "radio", name: "to", value: key, checked: key === state.to,
      });
      radio.addEventListener("change", () => chosen(key));
      const text = make("span", label);
      text.title = label;
      row.append(radio, text);
      return row;
    });
  $("targets").replaceChildren(...rows);
}

export function showFinding(finding) {
  const badge = $("verdict");
  badge.hidden = false;
  badge.dataset.verdict = finding?.verdict ?? "";
  badge.textContent = finding?.verdict ?? "fitting …";
  badge.title = finding?.reason ?? "";
  $("reason").textContent = finding?.reason ?? "";
  const refused = finding?.verdict === "refused";
  $("reason").hidden = !refused;
  badge.setAttribute("aria-expanded", String(refused));
  $("force-row").hidden = !(refused && finding["can be forced"]);
}

export function showFacts(slide) {
  const facts = {
    Size: `${slide.width.toLocaleString("en")} × ${slide.height.toLocaleString("en")} px`,
    Pixel: slide.mpp ? `${slide.mpp.map((each) => each.toPrecision(3)).join(" × ")} µm` : "size unknown",
    Format: slide.format,
  };
  $("facts").replaceChildren(...Object.entries(facts).flatMap(([name, text]) => [make("dt", name), make("dd", text)]));
}

export function showClasses({ classes, colors }) {
  $("network-row").hidden = false;
  $("classes").replaceChildren(...classes.slice(1).map((name, i) => {
    const row = make("span");
    const square = make("i");
    square.style.background = `rgb(${colors[i + 1].join(" ")})`;
    row.append(square, make("span", name));
    return row;
  }));
}

export function showPixel(pixel, full) {
  const rows = [["At", make("span", `${pixel.x}, ${pixel.y}`)], ["Before", chip(pixel.before)]];
  if (pixel.after) {
    rows.push(["After", chip(pixel.after)]);
    rows.push(["Hematoxylin", meter(pixel.hematoxylin, 1.5)], ["Eosin", meter(pixel.eosin, 1.5)]);
    rows.push(["Uncertainty", meter(pixel.uncertainty, full)]);
  }
  const list = $("pixel");
  list.replaceChildren(...rows.flatMap(([name, content]) => {
    const value = make("dd");
    value.append(content);
    return [make("dt", name), value];
  }));
  list.hidden = false;
}

function chip(color) {
  const part = document.createDocumentFragment();
  const square = make("span", "", "chip");
  square.style.background = `rgb(${color.join(" ")})`;
  part.append(square, make("span", color.join(", ")));
  return part;
}

function meter(value, full) {
  const part = document.createDocumentFragment();
  const bar = make("span", "", "meter");
  const inner = make("i");
  inner.style.width = `${100 * Math.min(1, Math.max(0, value / full))}%`;
  bar.append(inner);
  part.append(bar, make("span", value.toFixed(2)));
  return part;
}

let timer;
export function toast(text) {
  const element = $("toast");
  element.textContent = text;
  element.classList.add("seen");
  clearTimeout(timer);
  timer = setTimeout(() => element.classList.remove("seen"), 3500);
}
