// Two versions side by side, the old one with what stands on its steps. Both are laid out by one graph, so that what did
// not change stands at the same place in either, and are moved together.
import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useMemo, useState } from "react";
import { type Definition, engine } from "../api/client";
import { Problem, Skeleton } from "../parts/states";
import { halfOf, notesOf, type StepChange, type Union, unionOf } from "./diff";
import type { Layout } from "./layout";
import { DRAWN_MAX_STEPS, nearTo } from "./near";
import { Outline } from "./outline";
import { Arrows, Drawing, type Note, useLayout } from "./picture";
import { type View, Viewport } from "./viewport";

const TOKENS_REFRESH_MS = 60_000;
const NONE: ReadonlyMap<string, string> = new Map();

interface Props {
  /** Of these two texts, and of no others: a layout is kept by it. */
  id: string;
  before: Definition;
  after: Definition;
  changes: readonly StepChange[];
  /** What they are called: `v7`, `draft`. */
  names: { before: string; after: string };
  selected: string | undefined;
  onSelect: (stepId: string | undefined) => void;
}

export function TwoPictures(props: Props) {
  const { id, before, after, changes, selected } = props;
  const whole = useMemo(() => unionOf(before, after, changes), [before, after, changes]);
  const large = whole.definition.steps.length > DRAWN_MAX_STEPS;
  const around = large ? (selected ?? changes[0]?.id) : undefined;
  const union = useMemo(() => {
    const named = { ...whole.definition, id };
    const definition = large ? nearTo(named, around === undefined ? [] : [around]) : named;
    const drawn = new Set(definition.steps.map((step) => step.id));
    return { ...whole, definition, edges: whole.edges.filter((edge) => drawn.has(edge.from) && drawn.has(edge.to)) };
  }, [whole, id, large, around]);
  return (
    <div className="picture paired">
      {large && (
        <p className="mute note">
          {union.definition.steps.length} of {whole.definition.steps.length} steps are drawn: those near {selected !== undefined ? "the one chosen" : "the first change"}.
        </p>
      )}
      <Twins key={union.definition.id} {...props} union={union} large={large} />
    </div>
  );
}

function Twins({ before, after, changes, names, selected, onSelect, union, large }: Props & { union: Union; large: boolean }) {
  const { room, layout, far, small } = useLayout(union.definition, union.edges);
  const [view, setView] = useState<View>();
  const version = before.version;
  const tokens = useQuery({
    queryKey: ["tokens", before.id, version],
    queryFn: ({ signal }) => engine.tokens(before.id, version!, signal),
    refetchInterval: TOKENS_REFRESH_MS,
    enabled: version !== undefined,
  });
  const notes = useMemo(() => notesOf(changes, new Map(tokens.data?.steps.filter((step) => step.open > 0).map((step) => [step.stepId, step.open]))), [changes, tokens.data]);
  const halves = useMemo(() => layout.data && { before: halfOf(layout.data, before, union.renamed), after: halfOf(layout.data, after) }, [layout.data, before, after, union]);
  if (layout.error) return <Problem error={layout.error} retry={() => layout.refetch()} />;
  if (!layout.data || !halves)
    return (
      <div className="twins">
        <div className="canvas" ref={room}>
          <Skeleton rows={3} />
        </div>
      </div>
    );
  const both = { whole: layout.data, far, small, view, setView, selected, onSelect, outlined: !large };
  return (
    <div className="twins">
      <Half {...both} name={names.before} definition={before} layout={halves.before} notes={notes.before} renamed={union.renamed} buttons={false}>
        {tokens.data && ` with ${tokens.data.sampled ? "about " : ""}${tokens.data.instances.toLocaleString("en")} open ${tokens.data.instances === 1 ? "instance" : "instances"}`}
      </Half>
      <Half {...both} name={names.after} definition={after} layout={halves.after} notes={notes.after} renamed={NONE} buttons />
    </div>
  );
}

interface HalfProps extends Pick<Props, "selected" | "onSelect"> {
  name: string;
  definition: Definition;
  /** Of both, and what this one has of it. */
  whole: Layout;
  layout: Layout;
  far: boolean;
  small: (scale: number) => void;
  notes: Map<string, Note>;
  /** Its own ids, of the steps that have another one. */
  renamed: ReadonlyMap<string, string>;
  view: View | undefined;
  setView: React.Dispatch<React.SetStateAction<View | undefined>>;
  buttons: boolean;
  outlined: boolean;
  children?: ReactNode;
}

function Half({ name, definition, whole, layout, far, small, notes, renamed, view, setView, buttons, outlined, selected, onSelect, children }: HalfProps) {
  const extent = useMemo(() => ({ x: 0, y: 0, width: whole.width, height: whole.height }), [whole]);
  const own = selected === undefined ? undefined : (renamed.get(selected) ?? selected);
  const select = useMemo(() => {
    const names = new Map([...renamed].map(([now, was]) => [was, now]));
    return (id: string | undefined) => onSelect(id === undefined ? undefined : (names.get(id) ?? id));
  }, [renamed, onSelect]);
  return (
    <section className="twin" aria-label={name}>
      <p className="mute">
        <b>{name}</b>
        {children}
      </p>
      <Viewport label={`Picture of ${name}`} extent={extent} fitOn={whole} parts={whole.nodes} keep={whole.nodes.find(({ step }) => step.id === selected)} small={small} together={{ view, setView, buttons }}>
        {() => (
          <>
            {!buttons && <Arrows />}
            <Drawing layout={layout} far={far} notes={notes} selected={own} onSelect={select} />
          </>
        )}
      </Viewport>
      {outlined && <Outline definition={definition} states={undefined} />}
    </section>
  );
}
