import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The output is committed and compared byte by byte: no dates, no machine's paths, names by content.
export default defineConfig({
  base: "/console/",
  plugins: [react()],
  build: {
    outDir: "../src/penstock/console/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: "es2022",
    sourcemap: false,
    modulePreload: { polyfill: false },
    rolldownOptions: {
      // What the modeller does to a text is a module of its own, without a page: tests call what is shipped.
      input: { index: "index.html", "modeller-core": "src/modeller/core.ts" },
      preserveEntrySignatures: "allow-extension",
      output: {
        entryFileNames: "assets/[name]-[hash].js",
        chunkFileNames: "assets/[name]-[hash].js",
        assetFileNames: "assets/[name]-[hash][extname]",
      },
    },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8080", "/readyz": "http://127.0.0.1:8080", "/openapi.json": "http://127.0.0.1:8080" } },
});
