// What the graphics processor runs: lays tiles on the screen, maps their colors, and lays overlays over them.

export const PLACE = `#version 300 es
in vec2 corner;
uniform vec4 place;  // left, top, right, bottom in screen pixels
uniform vec2 screen;
out vec2 at;
void main() {
  at = corner;
  vec2 point = mix(place.xy, place.zw, corner);
  gl_Position = vec4(2.0 * point.x / screen.x - 1.0, 1.0 - 2.0 * point.y / screen.y, 0.0, 1.0);
}`;

export const SHOW = `#version 300 es
precision highp float;
in vec2 at;
uniform sampler2D tile;
out vec4 color;
void main() { color = vec4(texture(tile, at).rgb, 1.0); }`;

export const MAP = `#version 300 es
precision highp float;
precision highp int;
precision highp sampler3D;
uniform sampler2D tile;
uniform sampler3D coarse;
uniform sampler2D exact;
uniform sampler3D doubts;
uniform bool isExact;
uniform float spacing;
uniform float showDoubt;
uniform float showPen;
out vec4 color;

vec3 place(vec3 given, ivec3 size) {  // blue changes first in a table, then green, then red
  return (given.bgr * 255.0 / spacing + 0.5) / vec3(size);
}

void main() {
  vec3 given = texelFetch(tile, ivec2(gl_FragCoord.xy), 0).rgb;
  vec3 mapped;
  if (isExact) {
    ivec3 level = ivec3(given * 255.0 + 0.5);
    int number = level.r * 65536 + level.g * 256 + level.b;
    mapped = texelFetch(exact, ivec2(number & 4095, number >> 12), 0).rgb;
  } else {
    mapped = texture(coarse, place(given, textureSize(coarse, 0))).rgb;
  }
  if (showDoubt + showPen > 0.0) {
    vec2 doubt = texture(doubts, place(given, textureSize(doubts, 0))).rg;
    float gray = dot(mapped, vec3(0.3, 0.59, 0.11));
    vec3 heat = mix(vec3(0.16, 0.1, 0.36), vec3(1.0, 0.86, 0.3), doubt.r);
    mapped = mix(mapped, mix(vec3(gray), heat, smoothstep(0.08, 0.5, doubt.r)), showDoubt);
    mapped = mix(mapped, vec3(0.0, 0.86, 0.92), showPen * smoothstep(0.1, 0.6, doubt.g));
  }
  color = vec4(mapped, 1.0);
}`;

export const VEIL = `#version 300 es
precision highp float;
in vec2 at;
uniform sampler2D tissue;
out vec4 color;
void main() {  // premultiplied: what is not tissue is veiled
  float share = 0.72 * (1.0 - smoothstep(0.35, 0.65, texture(tissue, at).r));
  color = vec4(vec3(0.13) * share, share);
}`;

export const CLASSES = `#version 300 es
precision highp float;
in vec2 at;
uniform sampler2D tile;  // class ids
uniform sampler2D palette;
out vec4 color;
void main() {
  int id = int(texture(tile, at).r * 255.0 + 0.5);
  vec4 given = texelFetch(palette, ivec2(id, 0), 0);
  color = vec4(given.rgb * given.a, given.a);
}`;
