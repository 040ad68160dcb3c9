// The page of slides: what is shown follows from `state`, and the address always says what that is.

import { getBytes, getImage, getJson, readJson } from "./api.js";
import { canDraw, makeDrawer } from "./drawer.js";
import { makeDivider, makeMinimap, showScale } from "./hud.js";
import { listenToKeys } from "./keys.js";
import { showClasses, showFacts, showFinding, showPixel, showTargets, toast } from "./panel.js";
import { makeSource } from "./source.js";
import { suggestName, wireWriting } from "./write.js";

const $ = (id) => document.getElementById(id);
const EXACT_BYTES = 256 ** 3 * 3;
const NEAR = 1e-3; // share of a slide's width, or of a zoom

const state = {
  slide: 0,
  to: "reference",
  mode: "split",
  divider: 0.5,
  exact: false,
  forced: false,
  doubt: false,
  pen: false,
  tissue: false,
  network: false,
  finding: null,
};
const asked = new URLSearchParams(location.hash.slice(1));
const early = window.early ?? {};
const sessionAsked = early.session ? readJson(early.session) : getJson("api/session");
let session;
let slide; // how the one on show is laid out
let viewer;
let drawer;
let wanted = 0; // counts what was asked for, so that an answer that comes late is passed over

async function start() {
  if (!canDraw()) {
    showFinding({ verdict: "refused", reason: "This browser lacks WebGL 2, which draws the slides. Use another one." });
    return;
  }
  session = await sessionAsked;
  readAddress();
  fillSlides();
  viewer = OpenSeadragon({
    element: $("slide"),
    drawer: makeDrawer(OpenSeadragon),
    showNavigationControl: false,
    animationTime: 0.35,
    springStiffness: 9,
    maxZoomPixelRatio: 16,
    minZoomImageRatio: 0.7,
    visibilityRatio: 0.4,
    blendTime: 0,
    immediateRender: false,
    minPixelRatio: 0.6,
    imageLoaderLimit: 6,
    maxImageCacheCount: 500,
    gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
    gestureSettingsTouch: { clickToZoom: false, dblClickToZoom: true },
  });
  drawer = viewer.drawer;
  window.bottlegan = { viewer, drawer, state };
  viewer.canvas.setAttribute("role", "application");
  viewer.canvas.setAttribute("aria-label", "Slide: drag or use the arrow keys to pan, plus and minus to zoom");
  viewer.addHandler("canvas-key", (event) => { event.preventDefaultAction = true; });
  viewer.addHandler("canvas-click", (event) => { if (event.quick) pick(event.position); });
  viewer.addHandler("animation-finish", writeAddress);
  viewer.addHandler("open", () => { goToAsked(); watchTiles(); });
  viewer.addHandler("update-viewport", () => {
    if (slide) showScale(viewer, slide);
    if (!isWhole()) dropPicture();
  });
  makeMinimap(viewer);
  makeDivider(state, () => { drawer.setLook({ divider: state.divider }); writeAddress(); });
  wirePanel();
  if (session.network) {
    drawer.setClasses(session.network.colors);
    showClasses(session.network);
    viewer.addHandler("update-viewport", () => { $("network-note").textContent = state.network ? drawer.predictions.problem : ""; });
  }
  wireWriting(state);
  listenToKeys(actions);
  openSlide(state.slide);
}

function readAddress() {
  const number = Number(asked.get("slide") ?? 0);
  state.slide = number in session.slides ? number : 0;
  const to = asked.get("to");
  if (session.targets.some((each) => each.key === to)) state.to = to;
  if (["before", "split", "after"].includes(asked.get("mode"))) state.mode = asked.get("mode");
  const divider = Number(asked.get("divider") ?? 0.5);
  if (divider >= 0 && divider <= 1) state.divider = divider;
  state.exact = asked.has("exact");
}

function goToAsked() {
  const [x, y, zoom] = ["x", "y", "zoom"].map((name) => Number(asked.get(name) ?? NaN));
  if (Number.isFinite(x + y + zoom) && zoom > 0) {
    viewer.viewport.zoomTo(viewer.viewport.imageToViewportZoom(zoom / devicePixelRatio), null, true);
    viewer.viewport.panTo(viewer.viewport.imageToViewportCoordinates(x, y), true);
  }
  for (const name of ["x", "y", "zoom"]) asked.delete(name); // of the first slide only
}

function writeAddress() {
  if (!viewer.world.getItemCount()) return;
  const center = viewer.viewport.viewportToImageCoordinates(viewer.viewport.getCenter());
  const zoom = viewer.viewport.viewportToImageZoom(viewer.viewport.getZoom()) * devicePixelRatio;
  const said = new URLSearchParams({
    slide: state.slide,
    to: state.to,
    mode: state.mode,
    divider: state.divider.toFixed(4),
    x: center.x.toFixed(1),
    y: center.y.toFixed(1),
    zoom: zoom.toPrecision(7),
  });
  if (state.exact) said.set("exact", "");
  history.replaceState(null, "", `#${said}`);
}

function fillSlides() {
  const { slides } = session;
  $("slides").replaceChildren(...slides.map((name, i) => new Option(name, i)));
  $("gallery").hidden = slides.length < 2;
  $("slides").hidden = slides.length < 2;
  $("name").classList.toggle("unseen", slides.length > 1); // the list says it
}

/** Show another slide; say so if it cannot be read. */
function openSlide(number) {
  return loadSlide(number).catch((error) => {
    if (state.slide !== number) return;
    showFinding({ verdict: "refused", reason: error.message });
    toast(error.message);
  });
}

async function loadSlide(number) {
  if (state.slide !== number) dropPicture();
  state.slide = number;
  state.finding = null;
  state.forced = false;
  slide = null;
  const name = session.slides[number];
  $("slides").value = number;
  $("name").textContent = name;
  document.title = `${name} · BottleGAN`;
  showFinding(null);
  drawer.setTable(null);
  drawer.setDoubts(null, session.spacing);
  drawer.setTissue(null);
  drawer.predictions.clear(`api/slides/${number}/prediction`);
  viewer.close();
  drawer.drawn = 0;
  if (state.to === `slide:${number}`) state.to = "reference"; // it is in its own stain already
  showTargets(session, state, (to) => { change({ to }); loadMap(); });
  applyLook();
  const layout = await (number === 0 && early.layout ? readJson(early.layout) : getJson(`api/slides/${number}`));
  early.layout = null; // an answer is read once
  if (state.slide !== number) return;
  slide = layout;
  showFacts(slide);
  viewer.open(makeSource(slide, number));
  await drawer.waitForPixels(); // first things first: to fit a style takes a processor for itself
  if (state.slide !== number) return;
  $("small").src = `api/slides/${number}/thumbnail`;
  const finding = await getJson(`api/slides/${number}/finding`);
  if (state.slide !== number) return;
  state.finding = finding;
  showFinding(finding);
  await Promise.all([loadMap(), loadDoubts(), loadTissue()]);
}

/** Let the tiles be seen, which the first picture of the slide hides until they are all there. */
function dropPicture() {
  $("picture")?.remove();
}

/** Whether the whole slide is shown, where the first picture is. */
function isWhole() {
  const { viewport, world } = viewer;
  const home = viewport.getHomeBounds().getCenter();
  const near = viewport.getCenter(true).distanceTo(home) < NEAR && Math.abs(viewport.getZoom(true) / viewport.getHomeZoom() - 1) < NEAR;
  return !world.getItemCount() || near;
}

/** Ask for the map to the chosen stain: the coarse table at once, and the exact one if that is wanted. */
async function loadMap() {
  const mine = (wanted += 1);
  const { finding } = state;
  settle(false);
  if (!finding || !(finding.usable || (state.forced && finding["can be forced"]))) {
    drawer.setTable(null);
    settle(true);
    return;
  }
  const path = `api/slides/${state.slide}/table?${query()}`;
  try {
    const coarse = await getBytes(path);
    if (mine !== wanted) return;
    drawer.setTable("coarse", coarse, session.spacing);
    if (drawer.drawn) dropPicture();
    sayExactness("coarse");
    if (state.exact && drawer.canExact) {
      sayExactness("loading");
      const exact = await getBytes(`${path}&exact`);
      if (mine !== wanted) return;
      if (exact.length !== EXACT_BYTES) throw new Error("the exact table arrived incomplete; try again");
      drawer.setTable("exact", exact);
      sayExactness("exact");
    }
  } catch (error) {
    if (mine === wanted) toast(error.message);
  }
  if (mine === wanted) settle(true);
}

function query() {
  return new URLSearchParams({ to: state.to, ...(state.forced ? { forced: "" } : {}) });
}

async function loadDoubts() {
  const { slide, finding } = state;
  if (!(state.doubt || state.pen) || !finding?.["can be forced"]) return;
  const doubts = await getBytes(`api/slides/${slide}/doubts`);
  if (slide === state.slide) drawer.setDoubts(doubts, session.spacing);
}

async function loadTissue() {
  const { slide: number, tissue } = state;
  const image = tissue ? await getImage(`api/slides/${number}/tissue`) : null;
  if (number === state.slide && tissue === state.tissue) drawer.setTissue(image);
}

function sayExactness(kind) {
  const said = {
    coarse: `Interpolated between every ${session.spacing}rd level.`,
    loading: "Mapping all 16.7 million colors …",
    exact: "Every color is exact.",
  };
  $("exactness").textContent = said[kind];
}

function applyLook() {
  drawer.setLook({ mode: state.mode, divider: state.divider, doubt: state.doubt, pen: state.pen, network: state.network });
  const target = session.targets.find((each) => each.key === state.to);
  $("divider").hidden = state.mode !== "split";
  $("left").hidden = state.mode === "after";
  $("right").hidden = state.mode === "before";
  $("right").textContent = target.label;
  suggestName(session.slides[state.slide], target);
  $("doubt-legend").hidden = !state.doubt;
  for (const radio of document.getElementsByName("mode")) radio.checked = radio.value === state.mode;
  for (const name of ["exact", "doubt", "pen", "tissue", "network"]) $(name).checked = state[name];
  $("force").checked = state.forced;
  $("classes").hidden = !state.network;
  writeAddress();
}

/** Say on the page when nothing is on its way any more: tiles and map are those that were asked for. */
let mapSettled = false;
function settle(value) {
  mapSettled = value;
  watchTiles();
}
function watchTiles() {
  const item = viewer.world.getItemAt(0);
  if (item && !item.watched) {
    item.watched = true;
    item.addHandler("fully-loaded-change", watchTiles);
  }
  if (item?.getFullyLoaded()) dropPicture();
  $("stage").dataset.state = mapSettled && item?.getFullyLoaded() ? "settled" : "loading";
}

async function pick(position) {
  const at = drawer.findImage(viewer.world.getItemAt(0)); // where it is drawn, which may be rounded
  const { width, height } = slide;
  const x = Math.floor((position.x * devicePixelRatio - at.x) / at.scale);
  const y = Math.floor((position.y * devicePixelRatio - at.y) / at.scale);
  if (x < 0 || y < 0 || x >= width || y >= height) return;
  const mapped = drawer.table ? `&${query()}` : "";
  showPixel(await getJson(`api/slides/${state.slide}/pixel?x=${x}&y=${y}${mapped}`), session.doubt);
}

const change = (what) => { Object.assign(state, what); applyLook(); };

const actions = {
  mode: (mode) => change({ mode }),
  swap: () => change({ mode: state.mode === "after" ? "before" : "after" }),
  divide: (by) => {
    change({ mode: "split", divider: Math.min(1, Math.max(0, state.divider + by)) });
    makeDivider.show(state);
  },
  pan: (x, y) => {
    const { width, height } = viewer.viewport.getBounds();
    viewer.viewport.panBy(new OpenSeadragon.Point(x * width, y * height)).applyConstraints();
  },
  zoom: (by) => viewer.viewport.zoomBy(by).applyConstraints(),
  home: () => viewer.viewport.goHome(),
  native: () => viewer.viewport.zoomTo(viewer.viewport.imageToViewportZoom(1 / devicePixelRatio)),
  slide: (by) => {
    const next = state.slide + by;
    if (next in session.slides) openSlide(next);
  },
  target: (by) => {
    const radios = [...document.getElementsByName("to")];
    const next = radios.findIndex((each) => each.checked) + by + radios.length;
    radios[next % radios.length].click();
  },
  exact: () => { change({ exact: !state.exact }); loadMap(); },
  force: () => { change({ forced: !state.forced }); loadMap(); },
  doubt: () => { change({ doubt: !state.doubt }); loadDoubts(); },
  pen: () => { change({ pen: !state.pen }); loadDoubts(); },
  tissue: () => { change({ tissue: !state.tissue }); loadTissue(); },
  network: () => { if (session.network) change({ network: !state.network }); },
  pick: () => pick(viewer.viewport.pixelFromPoint(viewer.viewport.getCenter())),
  link: async () => {
    writeAddress();
    await navigator.clipboard.writeText(location.href).then(
      () => toast("Link copied. It works while bottlegan view runs."),
      () => toast("This browser does not let pages copy. Use the link in the address bar."),
    );
  },
  save: async () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await drawer.toPng());
    link.download = `${session.slides[state.slide].replace(/\.[^.]+$/, "")}-view.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  },
  panel: () => {
    const hidden = !$("panel").hidden;
    $("panel").hidden = hidden;
    $("toggle").setAttribute("aria-expanded", String(!hidden));
  },
  help: () => $("keys").showModal(),
};

function wirePanel() {
  for (const radio of document.getElementsByName("mode")) radio.addEventListener("change", () => actions.mode(radio.value));
  for (const name of ["exact", "force", "doubt", "pen", "tissue", "network"]) $(name).addEventListener("change", actions[name]);
  for (const name of ["link", "save", "help"]) $(name).addEventListener("click", actions[name]);
  $("toggle").addEventListener("click", actions.panel);
  $("slides").addEventListener("change", () => openSlide(Number($("slides").value)));
  $("verdict").addEventListener("click", () => {
    $("reason").hidden = !$("reason").hidden;
    $("verdict").setAttribute("aria-expanded", String(!$("reason").hidden));
  });
  $("exact").disabled = !drawer.canExact;
  if (!drawer.canExact) $("exactness").textContent = "This graphics processor is too small for the exact table.";
}

start().catch((error) => toast(error.message));
