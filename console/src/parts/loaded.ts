// What is loaded where it is first shown.
import { useEffect, useReducer } from "react";

/** A hook that gives it once it is wanted and there; where it could not be loaded, the next that wants it asks again. */
export function loaded<T>(load: () => Promise<T>): (wanted?: unknown) => T | undefined {
  let found: T | undefined;
  return function useLoaded(wanted: unknown = true) {
    const [, show] = useReducer((times: number) => times + 1, 0);
    useEffect(() => {
      if (found !== undefined || !wanted) return;
      let shown = true;
      load().then(
        (module) => {
          found = module;
          if (shown) show();
        },
        () => {}, // the engine is away, or a newer one has other files
      );
      return () => {
        shown = false;
      };
    }, [wanted]);
    return found;
  };
}
