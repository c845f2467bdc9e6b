/// <reference types="vite/client" />
/** The file of ELK's worker below the base address, copied as it came. */
declare const __ELK_WORKER__: string;
