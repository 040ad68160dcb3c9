// What a network says of the tiles that are seen: asked for as they come into view, and kept as textures.

import { getBytes } from "./api.js";
import { makeTexture } from "./gl.js";

const AT_ONCE = 2; // the server predicts one at a time
const KEPT = 400;

export class Predictions {
  constructor(gl, changed) {
    this.gl = gl;
    this.changed = changed;
    this.clear();
  }

  /** Forget those of another slide. */
  clear(path = "") {
    for (const texture of this.known?.values() ?? []) if (texture) this.gl.deleteTexture(texture);
    this.path = path;
    this.known = new Map(); // by a tile's address: its texture, or nothing if there is none
    this.asked = new Set();
    this.wanted = [];
    this.problem = "";
  }

  get isSettled() {
    return !this.asked.size && !this.wanted.length;
  }

  /** Return the textures of tiles; those that are not known yet are asked for, in order. */
  find(tiles) {
    const addresses = tiles.map(({ tile }) => `${tile.tiledImage.source.maxLevel - tile.level}/${tile.x}/${tile.y}`);
    this.wanted = tiles
      .map(({ drawn }, i) => ({ address: addresses[i], drawn }))
      .filter(({ address }) => !this.known.has(address) && !this.asked.has(address));
    this.ask();
    return addresses.map((address) => this.known.get(address));
  }

  ask() {
    while (this.asked.size < AT_ONCE && this.wanted.length) this.load(this.wanted.shift());
  }

  async load({ address, drawn }) {
    const { path, asked, gl } = this;
    asked.add(address);
    let texture = null;
    let problem = "";
    try {
      const ids = await getBytes(`${path}/${address}`);
      if (path === this.path) texture = makeTexture(gl, gl.R8, gl.RED, drawn.width, drawn.height, ids);
    } catch (error) {
      problem = error.message;
    }
    asked.delete(address);
    if (path !== this.path) return;
    this.problem = problem;
    this.known.set(address, texture);
    if (this.known.size > KEPT) this.forget(this.known.keys().next().value);
    this.ask();
    this.changed();
  }

  forget(address) {
    if (this.known.get(address)) this.gl.deleteTexture(this.known.get(address));
    this.known.delete(address);
  }
}
