// A page in a file of its own: loaded before somebody comes to it where that can be foreseen, shown in the same frame then.
// Not React's lazy: what that suspends is shown no sooner than 0.3 s after, and in one more turn also where it is there.
import { type ComponentType, useEffect, useState } from "react";
import { Skeleton } from "./states";

export interface Later<Props> {
  (props: Props): React.ReactNode;
  /** Where it is not there yet; what failed is tried again. */
  load: () => Promise<ComponentType<Props>>;
}

/** Until it is there `Waiting` stands in its place. */
export function later<Props extends object>(load: () => Promise<ComponentType<Props>>, Waiting: ComponentType = Skeleton): Later<Props> {
  let found: ComponentType<Props> | undefined;
  let loading: Promise<ComponentType<Props>> | undefined;
  const once = () =>
    (loading ??= load().then(
      (page) => (found = page),
      (error) => {
        loading = undefined;
        throw error;
      },
    ));
  function Page(props: Props) {
    const [Shown, show] = useState(() => found);
    const [error, fail] = useState<Error>();
    useEffect(() => {
      if (!Shown) once().then((page) => show(() => page), fail);
    }, [Shown]);
    if (error) throw error; // to the page's boundary
    return Shown ? <Shown {...props} /> : <Waiting />;
  }
  return Object.assign(Page, { load: once });
}
