import "./styles/fonts.css";
import "./styles/tokens.css";
import "./styles/console.css";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Router } from "wouter";
import { isTemporary } from "./api/client";
import { begin } from "./begin";
import { Console } from "./console";
import { applyTheme } from "./theme";

applyTheme();
const queries = new QueryClient({
  defaultOptions: {
    queries: { retry: (times, error) => times < 2 && isTemporary(error), staleTime: 1_000 },
  },
});
begin(queries);
createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <Router base="/console">
        <Console />
      </Router>
    </QueryClientProvider>
  </StrictMode>,
);
