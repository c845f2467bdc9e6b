// A definition comes from a file and goes into one, byte for byte.
import { useState } from "react";
import { Dialog } from "../parts/dialog";
import { FileButton, type TextFile } from "../parts/file";

interface Props {
  /** What a file would take the place of, in words; none where nothing would be lost. */
  over: string | undefined;
  /** The draft of now. */
  text: string;
  take: (text: string) => void;
  say: (text: string) => void;
}

export function ImportButton({ over, text, take, say }: Props) {
  const [asked, ask] = useState<TextFile>();
  const open = (read: TextFile) => {
    take(read.text);
    say(`Opened ${read.name}`);
  };
  return (
    <>
      <FileButton take={(read) => (over !== undefined && read.text !== text ? ask(read) : open(read))} refused={say}>
        Import
      </FileButton>
      {asked && (
        <Dialog title={`Open ${asked.name} in place of this draft?`} verb="Open it" act={async () => open(asked)} close={() => ask(undefined)}>
          <p>{over} Undo brings it back as long as this page is open; Export keeps it in a file.</p>
        </Dialog>
      )}
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
