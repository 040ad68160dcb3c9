// The keyboard. Keys that belong to a control that has the focus are left to it.

const PAN = 0.15;
const ZOOM = 1.5;
const DIVIDE = 0.05;

export function listenToKeys(actions) {
  const keys = {
    b: () => actions.mode("before"),
    d: () => actions.mode("split"),
    a: () => actions.mode("after"),
    " ": actions.swap,
    ",": () => actions.divide(-DIVIDE),
    ".": () => actions.divide(DIVIDE),
    ArrowLeft: () => actions.pan(-PAN, 0),
    ArrowRight: () => actions.pan(PAN, 0),
    ArrowUp: () => actions.pan(0, -PAN),
    ArrowDown: () => actions.pan(0, PAN),
    "+": () => actions.zoom(ZOOM),
    "=": () => actions.zoom(ZOOM),
    "-": () => actions.zoom(1 / ZOOM),
    0: actions.home,
    1: actions.native,
    "[": () => actions.slide(-1),
    "]": () => actions.slide(1),
    g: () => actions.target(1),
    G: () => actions.target(-1),
    u: actions.doubt,
    i: actions.pen,
    t: actions.tissue,
    n: actions.network,
    x: actions.exact,
    c: actions.pick,
    l: actions.link,
    s: actions.save,
    p: actions.panel,
    "?": actions.help,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]") || belongs(event)) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function belongs({ target, key }) {
  if (target.matches("input:not([type=radio], [type=checkbox]), select, textarea")) return true;
  const moves = key.startsWith("Arrow") || key === " ";
  return moves && target.matches("input, button, summary, a");
}
