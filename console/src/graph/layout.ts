// Where steps and edges stand. ELK runs in a worker; a version of a definition never changes, so its layout is kept: while
// the page lives, and in this browser.
import type { ElkExtendedEdge, ElkNode } from "elkjs/lib/elk-api";
import ELK from "elkjs/lib/elk-api";
import type { Definition, Step } from "../api/client";
import { type Edge, edgesOf } from "./edges";
import { elkWorker } from "./elk";
import { keptOrMade } from "./kept";
import { shapeOf } from "./shapes";

export interface Layout {
  width: number;
  height: number;
  nodes: { step: Step; x: number; y: number; width: number; height: number }[];
  edges: { edge: Edge; points: Point[]; label?: { x: number; y: number; width: number } }[];
}
export interface Point {
  x: number;
  y: number;
}

// Network simplex is prettier and quadratic: 2.2 s for 200 steps, where Brandes and Koepf take 1.2 s (spec, section 4).
const SIMPLEX_MAX_STEPS = 60;
const LABEL_MAX_CHARS = 26;
const KEPT_MAX = 50;
const PADDING = { top: 36, left: 20, bottom: 20, right: 20 };
/** Between two layers; a label stands in one of its own. */
const GAP = 34;
const LABEL_HEIGHT = 18;
const LABELLED_GAP = 50;

let elk: { worker: Worker; api: InstanceType<typeof ELK>; lost: Promise<never> } | undefined;
const kept = new Map<string, Promise<Layout>>();

/** `far`: as it is drawn when all of it has to be seen at once: larger names, no second line, no labels. Kept by the
 * definition's id and version: what is laid out with other steps or `edges` needs another id. */
export function layoutOf(definition: Definition, far: boolean, edges: Edge[] = edgesOf(definition)): Promise<Layout> {
  const key = `${definition.id}\n${definition.version}\n${far}`;
  const before = kept.get(key);
  if (before) return before;
  const made = compute(definition, far, edges);
  kept.set(key, made);
  made.catch(() => kept.delete(key));
  if (kept.size > KEPT_MAX) kept.delete(kept.keys().next().value!);
  return made;
}

async function compute(definition: Definition, far: boolean, edges: Edge[]): Promise<Layout> {
  const graph = graphOf(definition, edges, far);
  const found = alone(graph) ?? await keptOrMade(`${__ELK_WORKER__}\n${JSON.stringify(graph)}`, () => placed(graph));
  const steps = new Map(definition.steps.map((step) => [step.id, step]));
  const byId = new Map(edges.map((edge) => [edge.id, edge]));
  return {
    ...found,
    nodes: found.nodes.map(({ id, ...box }) => ({ step: steps.get(id)!, ...box })),
    edges: found.edges.map(({ id, ...way }) => ({ edge: byId.get(id)!, ...way })),
  };
}

/** One step, as ELK would put it: nothing has to be loaded for a new definition. */
function alone({ children = [], edges = [] }: ElkNode) {
  const [only, ...others] = children;
  if (!only || others.length || edges.length) return undefined;
  const { id, width = 0, height = 0 } = only;
  return { width: width + PADDING.left + PADDING.right, height: height + PADDING.top + PADDING.bottom, nodes: [{ id, x: PADDING.left, y: PADDING.top, width, height }], edges: [] };
}

/** No less than the height of the near layout: the steps of its longest way, one below the other. */
export function heightOf(definition: Definition, edges: Edge[] = edgesOf(definition)): number {
  const steps = new Map(definition.steps.map((step) => [step.id, step]));
  const ways = new Map(definition.steps.map(({ id }): [string, Edge[]] => [id, []]));
  for (const edge of edges) ways.get(edge.from)?.push(edge);
  /** Of what is below each, itself included; 0 while it is looked at: a way back adds nothing. */
  const heights = new Map<string, number>();
  const from = (id: string): number => {
    const before = heights.get(id);
    const step = steps.get(id);
    if (before !== undefined || !step) return before ?? 0;
    heights.set(id, 0);
    const below = (ways.get(id) ?? []).map(({ to, label }) => (from(to) ? from(to) + (label ? LABELLED_GAP : GAP) : 0));
    const height = sizeOf(step, false).height + Math.max(0, ...below);
    heights.set(id, height);
    return height;
  };
  return PADDING.top + PADDING.bottom + Math.max(0, ...definition.steps.map(({ id }) => from(id)));
}

async function placed(graph: ElkNode) {
  const { api, lost } = elkIn(elkWorker());
  const found = await Promise.race([api.layout(graph), lost]);
  return {
    width: found.width ?? 0,
    height: found.height ?? 0,
    nodes: (found.children ?? []).map(({ id, x = 0, y = 0, width = 0, height = 0 }) => ({ id, x, y, width, height })),
    edges: ((found.edges ?? []) as ElkExtendedEdge[]).map((edge) => {
      const section = edge.sections![0]!;
      const label = edge.labels?.[0];
      return {
        id: edge.id,
        points: [section.startPoint, ...(section.bendPoints ?? []), section.endPoint],
        ...(label ? { label: { x: label.x ?? 0, y: label.y ?? 0, width: label.width ?? 0 } } : {}),
      };
    }),
  };
}

/** A worker that could not be loaded answers nothing: whoever waits is told. */
function elkIn(worker: Worker) {
  if (elk?.worker === worker) return elk;
  const lost = new Promise<never>((_, refuse) => {
    worker.addEventListener("error", () => refuse(new Error("What lays pictures out could not be loaded.")));
  });
  elk = { worker, api: new ELK({ workerFactory: () => worker }), lost };
  return elk;
}

export function shortLabel(label: string): string {
  return label.length > LABEL_MAX_CHARS ? `${label.slice(0, LABEL_MAX_CHARS - 1)}…` : label;
}

export function sizeOf(step: Step, far: boolean): { width: number; height: number } {
  const { width, height } = shapeOf(step.type);
  if (!far) return { width, height };
  if (step.type === "END") return { width: 188, height: 40 };
  return step.type.endsWith("GATEWAY") ? { width: 210, height: 38 } : { width: 190, height: 54 };
}

function graphOf(definition: Definition, edges: Edge[], far: boolean): ElkNode {
  const simplex = definition.steps.length <= SIMPLEX_MAX_STEPS;
  return {
    id: "root",
    layoutOptions: {
      "elk.algorithm": "layered",
      "elk.direction": "DOWN",
      "elk.edgeRouting": "ORTHOGONAL",
      "elk.spacing.nodeNode": far ? "22" : "28",
      "elk.layered.spacing.nodeNodeBetweenLayers": far ? "26" : `${GAP}`,
      "elk.spacing.edgeNode": far ? "12" : "18",
      "elk.spacing.edgeEdge": "12",
      "elk.layered.spacing.edgeNodeBetweenLayers": "16",
      "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
      "elk.layered.cycleBreaking.strategy": "DEPTH_FIRST",
      "elk.layered.nodePlacement.strategy": simplex ? "NETWORK_SIMPLEX" : "BRANDES_KOEPF",
      "elk.layered.nodePlacement.favorStraightEdges": "true",
      "elk.layered.mergeEdges": "false",
      "elk.edgeLabels.placement": "CENTER",
      "elk.padding": `[top=${PADDING.top},left=${PADDING.left},bottom=${PADDING.bottom},right=${PADDING.right}]`,
    },
    children: definition.steps.map((step) => ({ id: step.id, ...sizeOf(step, far), layoutOptions: { "elk.portConstraints": "FREE" } })),
    edges: edges.map((edge) => ({
      id: edge.id,
      sources: [edge.from],
      targets: [edge.to],
      labels: edge.label && !far ? [{ text: edge.label, width: shortLabel(edge.label).length * 6.3 + 14, height: LABEL_HEIGHT }] : [],
      layoutOptions: edge.kind === "next" ? { "elk.layered.priority.straightness": "10", "elk.layered.priority.direction": "5" } : {},
    })),
  };
}
