// WebGL 2 in fewer words: programs, samplers and textures. None knows of slides or stains.

export function link(gl, vertex, fragment) {
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.bindAttribLocation(program, 0, "corner");
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
  const at = {};
  for (let i = 0; i < gl.getProgramParameter(program, gl.ACTIVE_UNIFORMS); i += 1) {
    const { name } = gl.getActiveUniform(program, i);
    at[name] = gl.getUniformLocation(program, name);
  }
  return { program, at };
}

export function makeSampler(gl, filter) {
  const sampler = gl.createSampler();
  setFilter((name, value) => gl.samplerParameteri(sampler, name, value), gl, filter);
  return sampler;
}

export function makeTexture(gl, inner, outer, width, height, data) {
  const texture = gl.createTexture();
  gl.bindTexture(gl.TEXTURE_2D, texture);
  gl.texImage2D(gl.TEXTURE_2D, 0, inner, width, height, 0, outer, gl.UNSIGNED_BYTE, data);
  setFilter((name, value) => gl.texParameteri(gl.TEXTURE_2D, name, value), gl, gl.NEAREST);
  return texture;
}

export function makeTexture3D(gl, inner, outer, side, data) {
  const texture = gl.createTexture();
  gl.bindTexture(gl.TEXTURE_3D, texture);
  gl.texImage3D(gl.TEXTURE_3D, 0, inner, side, side, side, 0, outer, gl.UNSIGNED_BYTE, data);
  setFilter((name, value) => gl.texParameteri(gl.TEXTURE_3D, name, value), gl, gl.LINEAR);
  return texture;
}

function setFilter(set, gl, filter) {
  for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) set(name, filter);
  for (const name of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T, gl.TEXTURE_WRAP_R]) set(name, gl.CLAMP_TO_EDGE);
}
