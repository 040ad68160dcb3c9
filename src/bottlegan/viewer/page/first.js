// Runs before anything else. The browser takes longer to prepare the scripts that draw tiles than the server takes to
// draw the whole slide. So the page contains a picture of it, and those scripts begin when it is on the screen.

const PATIENCE = 500; // milliseconds: a picture that takes longer shall not hold up the tiles
const picture = document.getElementById("picture");

// A narrow page begins without the panel. Hidden later, it would move the slide.
if (matchMedia("(max-width: 760px)").matches) {
  document.getElementById("panel").hidden = true;
  document.getElementById("toggle").setAttribute("aria-expanded", "false");
}

window.early = { session: fetch("api/session", { cache: "no-store" }) };
const another = /[#&]slide=[^0&]/.test(location.hash);
if (!another) window.early.layout = fetch("api/slides/0", { cache: "no-store" });
if (another || /[#&]x=/.test(location.hash)) picture.remove(); // the address asks for another place

async function waitForPicture() {
  await picture.decode();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
}

async function begin() {
  const patience = new Promise((done) => setTimeout(done, PATIENCE));
  // There is no picture of a slide that takes long to read.
  if (picture.isConnected) await Promise.race([waitForPicture().catch(() => {}), patience]);
  const library = document.createElement("script");
  library.src = "static/openseadragon.min.js";
  library.addEventListener("load", () => import("./view.js"));
  document.head.append(library);
}

begin();
