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
        // What all editors need is one file; what JSON's, its search, and the comparison of texts need more, others.
        codeSplitting: {
          groups: [
            { name: "editor", priority: 4, test: /node_modules\/(@codemirror\/(state|view|language|commands|autocomplete|lint)|@lezer\/(common|highlight))\/|src\/editor\/(parts|texts)/ },
            { name: "editor-json", priority: 3, test: /src\/editor\/json/ },
            { name: "editor-search", priority: 2, test: /node_modules\/@codemirror\/search\// },
            { name: "editor-merge", priority: 1, test: /node_modules\/@codemirror\/merge\// },
          ],
        },
      },
    },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8080", "/readyz": "http://127.0.0.1:8080", "/openapi.json": "http://127.0.0.1:8080" } },
});
