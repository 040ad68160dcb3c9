// What lies over the slide: the divider, the overview and the scale.

const $ = (id) => document.getElementById(id);
const KEY_STEP = 0.02;

export function makeDivider(state, moved) {
  const handle = $("divider");
  const stage = $("stage");
  const go = (share) => {
    state.divider = Math.min(1, Math.max(0, share));
    makeDivider.show(state);
    moved();
  };
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    event.preventDefault();
    handle.focus();
  });
  handle.addEventListener("pointermove", (event) => {
    if (!handle.hasPointerCapture(event.pointerId)) return;
    const box = stage.getBoundingClientRect();
    go((event.clientX - box.left) / box.width);
  });
  handle.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -KEY_STEP, ArrowRight: KEY_STEP, Home: -1, End: 1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    event.stopPropagation();
    go(state.divider + steps[event.key]);
  });
  makeDivider.show(state);
}

makeDivider.show = ({ divider }) => {
  $("divider").style.left = `${100 * divider}%`;
  $("divider").setAttribute("aria-valuenow", String(Math.round(100 * divider)));
};

export function makeMinimap(viewer) {
  const map = $("minimap");
  const small = $("small");
  const here = $("here");
  small.addEventListener("load", () => { map.hidden = false; show(); });
  function show() {
    const item = viewer.world.getItemAt(0);
    if (!item || map.hidden) return;
    const { x, y, width, height } = viewer.viewport.getBounds(true);
    const tall = item.getBounds().height;
    const clamp = (value, most) => Math.min(Math.max(value, 0), most);
    const [left, right] = [clamp(x, 1), clamp(x + width, 1)];
    const [top, bottom] = [clamp(y, tall), clamp(y + height, tall)];
    Object.assign(here.style, {
      left: `${100 * left}%`,
      top: `${(100 * top) / tall}%`,
      width: `${100 * (right - left)}%`,
      height: `${(100 * (bottom - top)) / tall}%`,
    });
  }
  viewer.addHandler("update-viewport", show);
  map.addEventListener("click", (event) => {
    const box = small.getBoundingClientRect();
    const item = viewer.world.getItemAt(0);
    const x = (event.clientX - box.left) / box.width;
    const y = ((event.clientY - box.top) / box.height) * item.getBounds().height;
    viewer.viewport.panTo(new OpenSeadragon.Point(x, y));
  });
}

/** Say how large the slide is shown, and show a bar of a round length in micrometers. */
export function showScale(viewer, slide) {
  if (!viewer.world.getItemCount()) return;
  const zoom = viewer.viewport.viewportToImageZoom(viewer.viewport.getZoom(true));
  const share = zoom * devicePixelRatio;
  $("zoom").textContent = share >= 1 ? `${trim(share)} : 1` : `1 : ${trim(1 / share)}`;
  const scale = $("scale");
  scale.hidden = !slide.mpp;
  if (!slide.mpp) return;
  const micrometers = slide.mpp[0] / zoom; // in one pixel of the page
  const most = 110 * micrometers;
  const power = 10 ** Math.floor(Math.log10(most));
  const length = [5, 2, 1].map((each) => each * power).find((each) => each <= most);
  scale.style.width = `${length / micrometers}px`;
  scale.textContent = length >= 1000 ? `${length / 1000} mm` : `${trim(length)} µm`;
}

function trim(value) {
  return String(Number(value.toPrecision(value < 10 ? 2 : 3)));
}
