// Line icons, 16 units wide. An icon never stands alone for an act that changes something.
const PATHS = {
  overview: "M2 13V8M6 13V3M10 13V9M14 13V5",
  instances: "M2.5 3.5h11M2.5 8h11M2.5 12.5h7",
  definitions: "M2.5 2h3a1 1 0 0 1 1 1v2a1 1 0 0 1-1 1h-3a1 1 0 0 1-1-1V3a1 1 0 0 1 1-1zM10.500 10h3a1 1 0 0 1 1 1v2a1 1 0 0 1-1 1h-3a1 1 0 0 1-1-1v-2a1 1 0 0 1 1-1zM4 6v4c0 1.500.7 2 2 2h3.500",
  jobs: "M2 5 8 2l6 3-6 3zM2 8l6 3 6-3M2 11l6 3 6-3",
  search: "M7 2.500a4.500 4.500 0 1 0 0 9 4.500 4.500 0 0 0 0-9zM10.500 10.500l3 3",
  moon: "M13.500 9.500A6 6 0 1 1 6.500 2.500a5 5 0 0 0 7 7z",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.500M8 13.500V15M1 8h1.500M13.500 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  help: "M8 1.800a6.200 6.200 0 1 0 0 12.400A6.200 6.200 0 0 0 8 1.800zM6.200 6.200C6.300 5 7.100 4.500 8 4.500c1 0 1.800.6 1.800 1.600 0 1.400-1.800 1.400-1.800 2.700M8 11.300v.1",
  close: "m4 4 8 8M12 4l-8 8",
  retry: "M13 8a5 5 0 1 1-1.600-3.700M13.500 2v3h-3",
  play: "M4.500 3v10l8-5z",
  copy: "M6.500 5H12a1.500 1.500 0 0 1 1.500 1.500V12a1.500 1.500 0 0 1-1.500 1.500H6.500A1.500 1.500 0 0 1 5 12V6.500A1.500 1.500 0 0 1 6.500 5zM11 5V3.500A1.500 1.500 0 0 0 9.500 2h-6A1.500 1.500 0 0 0 2 3.500v6A1.500 1.500 0 0 0 3.500 11H5",
  alert: "M8 4v5M8 12v.1",
  dot: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6z",
  hourglass: "M4.500 2.500h7L4.500 13.500h7z",
  tick: "m3 8.500 3.300 3.300L13 4.500",
  dash: "M3 8h10",
  ring: "M8 4.500a3.500 3.500 0 1 0 0 7 3.500 3.500 0 0 0 0-7z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg viewBox="0 0 16 16" width="16" height="16" className="icon" aria-hidden="true" data-icon={name}>
      <path d={PATHS[name]} />
    </svg>
  );
}
