// A slide's tiles for OpenSeadragon: plain RGB bytes, in steps that halve. Its levels count from the coarsest.

import { getBytes } from "./api.js";
import { RAW } from "./drawer.js";

export function makeSource(slide, number) {
  const { width, height, tile, steps } = slide;
  const maxLevel = steps - 1;

  function measure(level, x, y) {
    const scale = 2 ** (maxLevel - level);
    const [wide, high] = [Math.ceil(width / scale), Math.ceil(height / scale)];
    return { width: Math.min(tile, wide - x * tile), height: Math.min(tile, high - y * tile) };
  }

  return {
    width,
    height,
    tileSize: tile,
    tileOverlap: 0,
    minLevel: 0,
    maxLevel,
    getTileUrl: (level, x, y) => `api/slides/${number}/tiles/${maxLevel - level}/${x}/${y}`,
    hasTransparency: () => false,
    downloadTileStart(job) {
      const stop = new AbortController();
      job.userData.stop = stop;
      const { level, x, y } = job.tile;
      const size = measure(level, x, y);
      getBytes(job.src, { signal: stop.signal }).then(
        (data) => {
          if (data.length === size.width * size.height * 3) job.finish({ ...size, data }, null, RAW);
          else job.fail(`the tile ${level}/${x}/${y} has ${data.length} bytes`, null);
        },
        (error) => job.fail(String(error), null),
      );
    },
    downloadTileAbort(job) {
      job.userData.stop?.abort();
    },
  };
}
