// Answers expressions with the original, github.com/expr-lang/expr, so that our own evaluator can be held against it.
//
// Reads {"environment": {…}, "sources": ["…", …]} from standard input and writes one JSON line per source:
// {"value": …} or {"refused": true}, be it by the compiler or while running; {"infinite": true} for a result that
// JSON can't hold.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/expr-lang/expr"
)

type questions struct {
	Environment map[string]any `json:"environment"`
	Sources     []string       `json:"sources"`
}

func answer(source string, environment map[string]any) (result map[string]any) {
	defer func() {
		if recover() != nil {
			result = map[string]any{"refused": true}
		}
	}()
	program, err := expr.Compile(source, expr.Env(environment))
	if err != nil {
		return map[string]any{"refused": true}
	}
	value, err := expr.Run(program, environment)
	if err != nil {
		return map[string]any{"refused": true}
	}
	if _, err := json.Marshal(value); err != nil {
		return map[string]any{"infinite": true}
	}
	return map[string]any{"value": value}
}

func main() {
	var asked questions
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	for _, source := range asked.Sources {
		if err := encoder.Encode(answer(source, asked.Environment)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
