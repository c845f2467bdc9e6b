// A window on a picture: drag to move, wheel with Ctrl or the buttons to zoom.
import { type PointerEvent, type ReactNode, type RefObject, useCallback, useEffect, useLayoutEffect, useReducer, useRef, useState } from "react";
import type { Point } from "./layout";

export interface View {
  x: number;
  y: number;
  scale: number;
}
export interface Extent {
  x: number;
  y: number;
  width: number;
  height: number;
}

interface Props {
  label: string;
  extent: Extent;
  /** All of it is shown again when this is another one. */
  fitOn: unknown;
  /** What is in the picture. When it stands elsewhere, or the window gets another size, some of it stays in sight; all of it
   * as long as nobody has pressed anything. */
  parts?: readonly Extent[];
  /** Of the parts, the one that has to stay in sight then. */
  keep?: Extent | undefined;
  /** It has to be so small to be shown whole. */
  small?: (scale: number) => void;
  /** Drawn in the picture's own coordinates. */
  children: (view: View) => ReactNode;
  /** Beside the picture, in the window's corners. */
  beside?: ReactNode;
  /** Of windows of one size that are moved together. The buttons stand in one of them. */
  together?: { view: View | undefined; setView: React.Dispatch<React.SetStateAction<View | undefined>>; buttons: boolean };
  /** A small picture of the whole, where not all of it is in sight and the window has room for it. */
  map?: (at: Sight) => ReactNode;
}

/** What of a picture is seen. */
export interface Sight {
  extent: Extent;
  seen: Extent;
  /** Brings a point into the middle. */
  centre: (at: Point) => void;
}

const RIGHT_BUTTON = 2;
const ZOOM_STEP = 1.2;
const ZOOM_RANGE = [0.1, 3] as const;
const MARGIN = 16;
/** A window without room for a small picture in it. */
const SMALL: Size = { width: 480, height: 320 };

/** At which all of it is in the window; not enlarged. */
export function scaleOf(window: Size, { width, height }: Size): number {
  return Math.min(1, (window.width - 2 * MARGIN) / width, (window.height - 2 * MARGIN) / height);
}

export function Viewport({ label, extent, fitOn, parts, keep, small, children, beside, together, map }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const own = useState<View>();
  const [view, setView] = together ? [together.view, together.setView] : own;
  const size = useSize(box);
  const known = useRef(size);
  known.current = size;
  const fit = useCallback(() => {
    // Asking the element lays the page out at once; another size comes as an event before anything is painted.
    const { width, height } = known.current.width ? known.current : sizeNow(box.current!);
    const scale = scaleOf({ width, height }, extent);
    small?.(scale);
    const fitted = { scale, x: (width - extent.width * scale) / 2 - extent.x * scale, y: Math.max(MARGIN, (height - extent.height * scale) / 4) - extent.y * scale };
    setView((before) => (before && before.scale === fitted.scale && before.x === fitted.x && before.y === fitted.y ? before : fitted));
  }, [extent, small, setView]);
  const latest = useRef({ view, fit, parts: parts ?? [extent], keep });
  latest.current = { view, fit, parts: parts ?? [extent], keep };
  const fitted = useRef<unknown>(undefined);
  const pointing = useRef(false);
  const isTouched = useTouched();
  const [put, putOff] = useReducer((times: number) => times + 1, 0);
  // Before it is painted: what is seen laid out stays where it is.
  useLayoutEffect(() => {
    const { view, fit, parts, keep } = latest.current;
    if (!view || fitted.current !== fitOn) {
      fitted.current = fitOn;
      fit();
      return;
    }
    if (!size.width || !size.height) return;
    if (!isTouched.current) {
      fit(); // what else the page has to show came after it
      return;
    }
    if (pointing.current) {
      // Nothing moves under the pointer.
      addEventListener("pointerup", putOff, { once: true });
      return () => removeEventListener("pointerup", putOff);
    }
    const after = keep ? withIn(view, size, keep) : view;
    if (!parts.some((part) => isSeen(after, size, part))) fit();
    else if (after !== view) setView(after);
  }, [fitOn, extent, size, put, isTouched, setView]);
  const zoom = useCallback((by: number, at?: Point) => {
    const { clientWidth, clientHeight } = box.current!;
    const centre = at ?? { x: clientWidth / 2, y: clientHeight / 2 };
    setView((before) => {
      if (!before) return before;
      const scale = Math.min(ZOOM_RANGE[1], Math.max(ZOOM_RANGE[0], before.scale * by));
      const kept = scale / before.scale;
      return { scale, x: centre.x - (centre.x - before.x) * kept, y: centre.y - (centre.y - before.y) * kept };
    });
  }, [setView]);
  useEffect(() => {
    // React's own listener is passive and could not keep the page from zooming.
    const element = box.current!;
    const wheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const { left, top } = element.getBoundingClientRect();
      zoom(event.deltaY < 0 ? ZOOM_STEP : 1 / ZOOM_STEP, { x: event.clientX - left, y: event.clientY - top });
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, [zoom]);
  const centre = useCallback(({ x, y }: Point) => {
    const { width, height } = known.current;
    setView((before) => before && { ...before, x: width / 2 - x * before.scale, y: height / 2 - y * before.scale });
  }, [setView]);
  const seen = view && { x: -view.x / view.scale, y: -view.y / view.scale, width: size.width / view.scale, height: size.height / view.scale };
  const drag = useDrag(setView);
  // What the keys go to is seen, and nothing moves under the pointer: the browser scrolls the window, which has no bars to bring it back.
  const follow = useCallback(({ target }: React.FocusEvent) => {
    if (pointing.current || target.closest(".node") === null) return;
    const [window, node] = [box.current!.getBoundingClientRect(), target.getBoundingClientRect()];
    setView((before) => before && moved(before, missing(window.left, window.right, node.left, node.right), missing(window.top, window.bottom, node.top, node.bottom)));
  }, [setView]);
  return (
    <div
      className="canvas"
      ref={box}
      onFocus={follow}
      onScroll={() => box.current!.scrollTo(0, 0)}
      onPointerDownCapture={() => {
        pointing.current = true;
      }}
      onPointerUpCapture={() => {
        pointing.current = false;
      }}
      onPointerCancelCapture={() => {
        pointing.current = false;
      }}
      onKeyDownCapture={() => {
        pointing.current = false;
      }}
      {...drag}
    >
      {view && (
        <svg className="graph" role="group" aria-label={label} width="100%" height="100%">
          <g transform={`translate(${view.x} ${view.y}) scale(${view.scale})`}>{children(view)}</g>
        </svg>
      )}
      {(together?.buttons ?? true) && (
        <div className="zoom">
          <button type="button" className="btn sm" onClick={fit}>
            Fit
          </button>
          <button type="button" className="btn sm" aria-label="Zoom out" onClick={() => zoom(1 / ZOOM_STEP)}>
            −
          </button>
          <button type="button" className="btn sm" aria-label="Zoom in" onClick={() => zoom(ZOOM_STEP)}>
            +
          </button>
          <span className="sr" role="status">
            {view && `${Math.round(view.scale * 100)} %`}
          </span>
        </div>
      )}
      {beside}
      {map && seen && size.width >= SMALL.width && size.height >= SMALL.height && !isWithin(seen, extent) && map({ extent, seen, centre })}
    </div>
  );
}

/** Whether somebody has pressed, typed or turned the wheel since it came. */
function useTouched(): RefObject<boolean> {
  const isTouched = useRef(false);
  useEffect(() => {
    const touch = () => {
      isTouched.current = true;
    };
    const events = ["pointerdown", "keydown", "wheel"];
    for (const event of events) addEventListener(event, touch, { capture: true, once: true, passive: true });
    return () => {
      for (const event of events) removeEventListener(event, touch, { capture: true });
    };
  }, []);
  return isTouched;
}

interface Size {
  width: number;
  height: number;
}

/** Of an element, as it changes. */
function useSize(element: React.RefObject<HTMLElement | null>): Size {
  const [size, setSize] = useState<Size>({ width: 0, height: 0 });
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setSize({ width: entry!.contentRect.width, height: entry!.contentRect.height }));
    observer.observe(element.current!);
    return () => observer.disconnect();
  }, [element]);
  return size;
}

export function sizeNow({ clientWidth, clientHeight }: Element): Size {
  return { width: clientWidth, height: clientHeight };
}

function moved(view: View, dx: number, dy: number): View {
  return dx === 0 && dy === 0 ? view : { ...view, x: view.x + dx, y: view.y + dy };
}

/** Moved as little as puts the part into the window. */
function withIn(view: View, { width, height }: Size, part: Extent): View {
  const [left, top] = [part.x * view.scale + view.x, part.y * view.scale + view.y];
  return moved(view, missing(0, width, left, left + part.width * view.scale), missing(0, height, top, top + part.height * view.scale));
}

/** But for what is less than a unit. */
function isWithin(seen: Extent, { x, y, width, height }: Extent): boolean {
  return x >= seen.x - 1 && y >= seen.y - 1 && x + width <= seen.x + seen.width + 1 && y + height <= seen.y + seen.height + 1;
}

function isSeen({ x, y, scale }: View, { width, height }: Size, part: Extent): boolean {
  const [left, top] = [part.x * scale + x, part.y * scale + y];
  return left < width && top < height && left + part.width * scale > 0 && top + part.height * scale > 0;
}

/** How far something has to be moved to be between two sides. */
function missing(from: number, to: number, start: number, end: number): number {
  const behind = from + MARGIN - start;
  return behind > 0 ? behind : Math.max(behind, Math.min(0, to - MARGIN - end));
}

function useDrag(setView: React.Dispatch<React.SetStateAction<View | undefined>>) {
  const from = useRef<{ pointer: number; x: number; y: number }>(undefined);
  return {
    onPointerDown: (event: PointerEvent<HTMLDivElement>) => {
      if (event.button === RIGHT_BUTTON || (event.target as Element).closest("button, .node, .grip, .hit")) return;
      from.current = { pointer: event.pointerId, x: event.clientX, y: event.clientY };
      event.currentTarget.setPointerCapture(event.pointerId);
    },
    onPointerMove: (event: PointerEvent<HTMLDivElement>) => {
      const start = from.current;
      if (start?.pointer !== event.pointerId) return;
      const [dx, dy] = [event.clientX - start.x, event.clientY - start.y];
      from.current = { ...start, x: event.clientX, y: event.clientY };
      setView((before) => before && { ...before, x: before.x + dx, y: before.y + dy });
    },
    onPointerUp: () => {
      from.current = undefined;
    },
    onPointerCancel: () => {
      from.current = undefined;
    },
  };
}
