// What others know of the picture: where a step is in it, and what is dragged onto it.
/** Of what is dragged out of the palette: the type of a step. */
export const DRAGGED = "text/x-penstock-step";

export function stepElement(id: string): SVGElement | null {
  return document.querySelector<SVGElement>(`.surface .node[data-step="${CSS.escape(id)}"]`);
}
