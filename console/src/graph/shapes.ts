// How steps are drawn: the table of `penstock draw`, which the build writes to shapes.json.
import SHAPES from "./shapes.json";

export interface Shape {
  hue: string;
  width: number;
  height: number;
  icon: string;
}

export const { marks: MARKS, events: EVENTS } = SHAPES;

/** A type that nobody knows looks like a service task. */
export function shapeOf(type: string): Shape {
  return Object.hasOwn(SHAPES.types, type) ? SHAPES.types[type as keyof typeof SHAPES.types] : SHAPES.types.SERVICE_TASK;
}
