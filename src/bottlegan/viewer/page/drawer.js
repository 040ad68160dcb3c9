// Draws tiles with WebGL 2, each as it is and as the color map makes it.
//
// A tile arrives as plain RGB bytes, so no decoder or color profile of the browser comes between the slide and the
// screen. It is mapped once, texel by texel, into a texture of its own, and again only when the map changes: panning and
// zooming cost the same with the map on and off. At one screen pixel for each pixel of the slide, tiles are laid on
// whole screen pixels, so that what is shown is what the map says, not a mean of neighbors.

import { link, makeSampler, makeTexture, makeTexture3D } from "./gl.js";
import { Predictions } from "./predictions.js";
import { CLASSES, MAP, PLACE, SHOW, VEIL } from "./shaders.js";

const CORNERS = new Float32Array([0, 0, 1, 0, 0, 1, 1, 1]);
const GROUND = 0x22 / 255;
const EXACT_SIDE = 4096;
const COVER = 115; // of 255: how much of a slide the color of a class hides
const PATIENCE = 2000; // milliseconds
const WHOLE = 1e-4; // how near a power of two the zoom must be to be one

export const RAW = "rgb-bytes";

/** Whether this browser can draw at all. To try would cost as much as to begin. */
export const canDraw = () => "WebGL2RenderingContext" in window;

/** Make the drawer's class; OpenSeadragon makes the drawer. */
export function makeDrawer(OpenSeadragon) {
  return class MapDrawer extends OpenSeadragon.DrawerBase {
    constructor(options) {
      super(options);
      this.look = { mode: "split", divider: 0.5, doubt: false, pen: false, network: false };
      this.tissue = null;
      this.version = 0; // of the map: tiles mapped by another are mapped again
      this.frames = 0;
      this.drawn = 0; // tiles in the last of them
      this.table = null; // "coarse", "exact" or nothing
      this.textures = {};
      this.spacing = 1;
      this.begin();
    }

    get defaultOptions() {
      return { usePrivateCache: true, preloadCache: false };
    }

    getType() {
      return "bottlegan";
    }

    static isSupported() {
      return canDraw();
    }

    getSupportedDataFormats() {
      return [RAW];
    }

    canRotate() {
      return false;
    }

    setImageSmoothingEnabled() {}

    _createDrawingElement() {
      const canvas = OpenSeadragon.makeNeutralElement("canvas");
      const size = this._calculateCanvasSize();
      [canvas.width, canvas.height] = [size.x, size.y];
      return canvas;
    }

    begin() {
      const gl = this.canvas.getContext("webgl2", { alpha: false, antialias: false, depth: false });
      if (!gl) throw new Error("This browser does not allow WebGL 2. Allow it, or use another browser.");
      this.gl = gl;
      gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
      gl.bufferData(gl.ARRAY_BUFFER, CORNERS, gl.STATIC_DRAW);
      gl.enableVertexAttribArray(0);
      gl.vertexAttribPointer(0, 2, gl.FLOAT, false, 0, 0);
      gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
      gl.pixelStorei(gl.UNPACK_COLORSPACE_CONVERSION_WEBGL, gl.NONE);
      this.programs = { show: link(gl, PLACE, SHOW), map: link(gl, PLACE, MAP), veil: link(gl, PLACE, VEIL), classes: link(gl, PLACE, CLASSES) };
      this.samplers = { smooth: makeSampler(gl, gl.LINEAR), sharp: makeSampler(gl, gl.NEAREST) };
      this.buffer = gl.createFramebuffer();
      this.nothing = makeTexture3D(gl, gl.RGB8, gl.RGB, 1, new Uint8Array(3));
      this.blank = makeTexture(gl, gl.RGB8, gl.RGB, 1, 1, new Uint8Array(3));
      this.predictions = new Predictions(gl, () => this.redraw());
      this.canExact = gl.getParameter(gl.MAX_TEXTURE_SIZE) >= EXACT_SIDE;
    }

    /** Take a coarse or exact table of the map, or none, and how many levels are between two of its colors. */
    setTable(kind, data, spacing) {
      const { gl } = this;
      for (const name of ["coarse", "exact"]) {
        if (this.textures[name]) gl.deleteTexture(this.textures[name]);
        this.textures[name] = null;
      }
      if (kind === "coarse") {
        this.textures.coarse = makeTexture3D(gl, gl.RGB8, gl.RGB, Math.round(Math.cbrt(data.length / 3)), data);
      } else if (kind === "exact") {
        this.textures.exact = makeTexture(gl, gl.RGB8, gl.RGB, EXACT_SIDE, EXACT_SIDE, data);
      }
      this.table = kind;
      this.spacing = spacing || this.spacing;
      this.change();
    }

    /** Take the table of uncertainty and pen. */
    setDoubts(data, spacing) {
      const { gl } = this;
      if (this.textures.doubts) gl.deleteTexture(this.textures.doubts);
      this.textures.doubts = data && makeTexture3D(gl, gl.RG8, gl.RG, Math.round(Math.cbrt(data.length / 2)), data);
      this.spacing = spacing;
      this.change();
    }

    /** Veil all but the tissue that an image of the whole slide shows, or nothing. */
    setTissue(image) {
      const { gl } = this;
      if (this.tissue) gl.deleteTexture(this.tissue);
      this.tissue = null;
      if (image) {
        this.tissue = gl.createTexture();
        gl.bindTexture(gl.TEXTURE_2D, this.tissue);
        gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, gl.RGBA, gl.UNSIGNED_BYTE, image);
      }
      this.redraw();
    }

    /** Take the colors of a network's classes; the first is the background, and not shown. */
    setClasses(colors) {
      const { gl } = this;
      const palette = new Uint8Array(256 * 4);
      colors.forEach((color, i) => { if (i) palette.set([...color, COVER], 4 * i); });
      this.textures.palette = makeTexture(gl, gl.RGBA8, gl.RGBA, 256, 1, palette);
    }

    /** Change how it looks: mode, divider, doubt, pen, network. */
    setLook(look) {
      const before = this.look;
      this.look = { ...before, ...look };
      if (before.doubt !== this.look.doubt || before.pen !== this.look.pen) this.change();
      else this.redraw();
    }

    change() {
      this.version += 1;
      this.redraw();
    }

    redraw() {
      this.viewer.forceRedraw();
    }

    internalCacheCreate(cache) {
      const { gl } = this;
      const { width, height, data } = cache.data;
      const given = makeTexture(gl, gl.RGB8, gl.RGB, width, height, data);
      return { width, height, given, mapped: null, version: -1 };
    }

    internalCacheFree(tile) {
      this.gl.deleteTexture(tile.given);
      if (tile.mapped) this.gl.deleteTexture(tile.mapped);
    }

    destroy() {
      this.destroyInternalCache();
      this.gl.getExtension("WEBGL_lose_context")?.loseContext();
      super.destroy();
    }

    draw(images) {
      const { gl } = this;
      const size = this._calculateCanvasSize();
      if (this.canvas.width !== size.x || this.canvas.height !== size.y) {
        [this.canvas.width, this.canvas.height] = [size.x, size.y];
      }
      this.frames += 1;
      gl.disable(gl.SCISSOR_TEST);
      gl.clearColor(GROUND, GROUND, GROUND, 1);
      gl.bindFramebuffer(gl.FRAMEBUFFER, null);
      gl.clear(gl.COLOR_BUFFER_BIT);
      for (const image of images) this.drawImage(image, size);
    }

    drawImage(image, size) {
      const { gl } = this;
      const tiles = this.layOut(image);
      this.drawn = tiles.length;
      const after = this.table !== null;
      const edge = Math.round(size.x * this.look.divider);
      const [from, to] = !after || this.look.mode === "before" ? [size.x, size.x]
        : this.look.mode === "after" ? [0, size.x] : [edge, size.x];
      if (after) this.mapAll(tiles.filter((tile) => tile.place[2] > from));
      gl.bindFramebuffer(gl.FRAMEBUFFER, null);
      gl.viewport(0, 0, size.x, size.y);
      gl.enable(gl.SCISSOR_TEST);
      this.drawTiles(tiles, "given", 0, from, size);
      this.drawTiles(tiles, "mapped", from, to, size);
      gl.disable(gl.SCISSOR_TEST);
      if (this.look.network) this.drawClasses(tiles, size);
      if (this.tissue) this.drawVeil(image, size);
      this._raiseTiledImageDrawnEvent(image, tiles.map((each) => each.tile));
    }

    /** Return where the image lies on the screen: its corner, and screen pixels for each of its own. */
    findImage(image) {
      const box = this.viewportToDrawerRectangle(image.getBounds(true));
      const scale = box.width / image.source.dimensions.x;
      const power = Math.round(Math.log2(scale));
      if (Math.abs(Math.log2(scale) - power) > WHOLE) return { x: box.x, y: box.y, scale };
      return { x: Math.round(box.x), y: Math.round(box.y), scale: 2 ** power };
    }

    layOut(image) {
      const at = this.findImage(image);
      const { maxLevel } = image.source;
      return image.getTilesToDraw().flatMap(({ tile }) => {
        const drawn = this.getDataToDraw(tile);
        if (!drawn?.given) return [];
        const texel = 2 ** (maxLevel - tile.level) * at.scale; // screen pixels
        const side = image.source.getTileWidth(tile.level) * texel;
        const [left, top] = [at.x + tile.x * side, at.y + tile.y * side];
        const place = [left, top, left + drawn.width * texel, top + drawn.height * texel];
        return [{ tile, drawn, place, sharp: texel === 1 || texel >= 2 }];
      });
    }

    drawTiles(tiles, which, from, to, size) {
      if (to <= from) return;
      const { gl } = this;
      const program = this.programs.show;
      gl.useProgram(program.program);
      gl.scissor(from, 0, to - from, size.y);
      gl.uniform2f(program.at.screen, size.x, size.y);
      gl.uniform1i(program.at.tile, 0);
      gl.activeTexture(gl.TEXTURE0);
      for (const { drawn, place, sharp } of tiles) {
        if (place[2] <= from || place[0] >= to || place[3] <= 0 || place[1] >= size.y) continue;
        gl.bindTexture(gl.TEXTURE_2D, drawn[which]);
        gl.bindSampler(0, sharp ? this.samplers.sharp : this.samplers.smooth);
        gl.uniform4fv(program.at.place, place);
        gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
      }
      gl.bindSampler(0, null);
    }

    /** Map those tiles that the present map has not seen. */
    mapAll(tiles) {
      const old = tiles.filter(({ drawn }) => drawn.version !== this.version);
      if (!old.length) return;
      const { gl, look, textures } = this;
      const program = this.programs.map;
      gl.useProgram(program.program);
      gl.uniform1f(program.at.spacing, this.spacing);
      gl.uniform1i(program.at.isExact, this.table === "exact");
      gl.uniform1f(program.at.showDoubt, look.doubt && textures.doubts ? 1 : 0);
      gl.uniform1f(program.at.showPen, look.pen && textures.doubts ? 1 : 0);
      gl.uniform2f(program.at.screen, 1, 1);
      gl.uniform4f(program.at.place, 0, 0, 1, 1);
      const units = { tile: null, coarse: textures.coarse, exact: textures.exact, doubts: textures.doubts };
      Object.entries(units).forEach(([name, texture], unit) => {
        const flat = name === "tile" || name === "exact";
        gl.uniform1i(program.at[name], unit);
        gl.activeTexture(gl.TEXTURE0 + unit);
        gl.bindTexture(flat ? gl.TEXTURE_2D : gl.TEXTURE_3D, texture || (flat ? this.blank : this.nothing));
      });
      gl.activeTexture(gl.TEXTURE0);
      gl.bindFramebuffer(gl.FRAMEBUFFER, this.buffer);
      for (const { drawn } of old) {
        drawn.mapped ||= makeTexture(gl, gl.RGBA8, gl.RGBA, drawn.width, drawn.height, null);
        gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, drawn.mapped, 0);
        gl.viewport(0, 0, drawn.width, drawn.height);
        gl.bindTexture(gl.TEXTURE_2D, drawn.given);
        gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
        drawn.version = this.version;
      }
    }

    /** Lay a network's classes over the finest of the tiles; those that are not there yet are asked for. */
    drawClasses(tiles, size) {
      const { gl } = this;
      const program = this.programs.classes;
      const finest = Math.max(...tiles.map(({ tile }) => tile.level));
      const shown = tiles.filter(({ tile }) => tile.level === finest);
      const textures = this.predictions.find(shown);
      gl.useProgram(program.program);
      gl.uniform2f(program.at.screen, size.x, size.y);
      gl.uniform1i(program.at.tile, 0);
      gl.uniform1i(program.at.palette, 1);
      gl.activeTexture(gl.TEXTURE1);
      gl.bindTexture(gl.TEXTURE_2D, this.textures.palette);
      gl.activeTexture(gl.TEXTURE0);
      gl.enable(gl.BLEND);
      gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
      shown.forEach(({ place }, i) => {
        if (!textures[i]) return;
        gl.bindTexture(gl.TEXTURE_2D, textures[i]);
        gl.uniform4fv(program.at.place, place);
        gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
      });
      gl.disable(gl.BLEND);
    }

    drawVeil(image, size) {
      const { gl } = this;
      const program = this.programs.veil;
      const at = this.findImage(image);
      const { x, y } = image.source.dimensions;
      gl.useProgram(program.program);
      gl.uniform2f(program.at.screen, size.x, size.y);
      gl.uniform4f(program.at.place, at.x, at.y, at.x + x * at.scale, at.y + y * at.scale);
      gl.uniform1i(program.at.tissue, 0);
      gl.activeTexture(gl.TEXTURE0);
      gl.bindTexture(gl.TEXTURE_2D, this.tissue);
      gl.bindSampler(0, this.samplers.smooth);
      gl.enable(gl.BLEND);
      gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
      gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
      gl.disable(gl.BLEND);
      gl.bindSampler(0, null);
    }

    /** Wait until something is on the screen, but not for long. */
    async waitForPixels() {
      const patience = performance.now() + PATIENCE;
      while (!this.drawn && performance.now() < patience) await new Promise((done) => requestAnimationFrame(done));
    }

    /** Return what is seen now as a PNG. */
    toPng() {
      const images = Array.from({ length: this.viewer.world.getItemCount() }, (_, i) => this.viewer.world.getItemAt(i));
      this.draw(images); // a browser clears what it has shown
      return new Promise((resolve) => this.canvas.toBlob(resolve, "image/png"));
    }
  };
}
