// The keys go where something will be in some frames. Whoever has gone elsewhere meanwhile stays there.
import { stepElement } from "./drawn";

const WITHIN_FRAMES = 1_200;
const CONTROLS = "input:not([hidden]), select, textarea, button, [role=textbox]";

/** The layout comes some frames later, and a dialog that is taken out leaves the focus to nobody. */
export function focusLater(id: string, from = document.activeElement): void {
  whenThere(() => stepElement(id), from);
}

/** The field of a panel at which something stands (`nameOfPlace`): in it what is wrong, or what comes first. */
export function focusField(place: string): void {
  whenThere(() => {
    const field = placed(place);
    if (!field) return null;
    const add = field.tagName === "FIELDSET" ? field.querySelector<HTMLElement>(":scope > button:not(.ghost)") : null;
    return field.querySelector<HTMLElement>("[aria-invalid=true]") ?? add ?? field.querySelector<HTMLElement>(CONTROLS) ?? field;
  }, document.activeElement);
}

/** In what was just added the first that takes keys. */
export function focusNew(place: string): void {
  whenThere(() => {
    const first = placed(place)?.querySelector<HTMLInputElement>(CONTROLS) ?? null;
    // What it begins with is typed over. Selected before it has the keys: with these an editor may take its place.
    first?.setSelectionRange?.(0, first.value.length);
    return first;
  }, document.activeElement);
}

/** What had the keys was taken out: they go to what adds another one there, or around it. */
export function focusLeft(places: readonly string[]): void {
  whenThere(() => {
    const left = places.map(placed).find((one) => one !== null) ?? document.querySelector<HTMLElement>(".props");
    return left && (left.querySelector<HTMLElement>(":scope > button:not(.ghost)") ?? left.querySelector<HTMLElement>(CONTROLS));
  }, document.activeElement);
}

function placed(place: string): HTMLElement | null {
  return document.querySelector<HTMLElement>(`.props [data-place="${CSS.escape(place)}"]`);
}

function whenThere(find: () => HTMLElement | SVGElement | null, from: Element | null, frames = WITHIN_FRAMES): void {
  requestAnimationFrame(() => {
    const now = document.activeElement;
    if (frames === 0 || (now !== from && now !== document.body)) return;
    const element = find();
    element?.focus(); // nothing outside of a dialog takes it while that is open
    if (!element || document.activeElement !== element) whenThere(find, from, frames - 1);
  });
}
