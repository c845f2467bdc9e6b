// A definition comes from a file and goes into one, byte for byte.
import { useState } from "react";
import { FileButton, type TextFile } from "../parts/file";
import { usePressed } from "./press";

interface Props {
  /** What a file would take the place of, in words; none where nothing would be lost. */
  over: string | undefined;
  /** The draft of now. */
  text: string;
  take: (text: string) => void;
  say: (text: string) => void;
}

export function ImportButton({ over, text, take, say }: Props) {
  const [asked, ask] = useState<TextFile & { over: string }>();
  const pressed = usePressed(asked);
  const open = (read: TextFile) => {
    take(read.text);
    say(`Opened ${read.name}`);
  };
  return (
    <>
      <FileButton take={(read) => (over !== undefined && read.text !== text ? ask({ ...read, over }) : open(read))} refused={say}>
        Import
      </FileButton>
      {asked && pressed && <pressed.OpenDialog name={asked.name} over={asked.over} open={() => open(asked)} close={() => ask(undefined)} />}
    </>
  );
}

export function download(text: string, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: name.endsWith(".json") ? "application/json" : "text/plain" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
