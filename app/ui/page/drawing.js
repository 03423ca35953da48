// Who draws this page: a graphics card, or the processor, which may be the one that the engine computes on.

const IN_SOFTWARE = /swiftshader|llvmpipe|softpipe|software|basic render/i;

export function hasCard() {
  const gl = document.createElement("canvas").getContext("webgl", { failIfMajorPerformanceCaveat: true });
  if (!gl) return false;
  const names = gl.getExtension("WEBGL_debug_renderer_info");
  const card = gl.getParameter(names ? names.UNMASKED_RENDERER_WEBGL : gl.RENDERER);
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return !IN_SOFTWARE.test(card);
}
