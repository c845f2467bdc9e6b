// Answers expressions with the original, github.com/expr-lang/expr, so that our own evaluator can be held against it.
//
// Reads {"environment": {…}, "sources": ["…", …], "dynamic": false} from standard input and writes one JSON line per
// source: {"value": …} or {"refused": true}, be it by the compiler or while running; {"infinite": true} for a result
// that JSON can't hold.
//
// With "dynamic" it compiles without the types of the variables, as an engine does that knows them only when it runs,
// reads whole numbers as such, tells why it refused ({"refused": "…"}), and writes what JSON has no form for as
// {"$time": "…"}, {"$duration": nanoseconds}, {"$zone": "…"}, {"$bytes": […]}, {"$float": "NaN"}, {"$pairs": [[key, value], …]} and
// {"$other": "type"}.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/expr-lang/expr"
)

type questions struct {
	Environment map[string]any `json:"environment"`
	Sources     []string       `json:"sources"`
	Dynamic     bool           `json:"dynamic"`
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

func answerDynamic(source string, environment map[string]any) (result map[string]any) {
	defer func() {
		if reason := recover(); reason != nil {
			result = map[string]any{"refused": fmt.Sprint(reason)}
		}
	}()
	program, err := expr.Compile(source)
	if err != nil {
		return map[string]any{"refused": "compile: " + firstLine(err)}
	}
	value, err := expr.Run(program, environment)
	if err != nil {
		return map[string]any{"refused": firstLine(err)}
	}
	return map[string]any{"value": written(reflect.ValueOf(value))}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func written(v reflect.Value) any {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() {
		return nil
	}
	switch x := v.Interface().(type) {
	case time.Time:
		return map[string]any{"$time": x.UTC().Format(time.RFC3339Nano)}
	case time.Duration:
		return map[string]any{"$duration": int64(x)}
	case *time.Location:
		return map[string]any{"$zone": x.String()}
	case time.Location:
		return map[string]any{"$zone": x.String()}
	case []byte:
		items := make([]int, len(x))
		for i, b := range x {
			items[i] = int(b)
		}
		return map[string]any{"$bytes": items}
	}
	switch v.Kind() {
	case reflect.Float64, reflect.Float32:
		f := v.Float()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return map[string]any{"$float": fmt.Sprint(f)}
		}
		return f
	case reflect.Bool, reflect.String:
		return v.Interface()
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice && v.IsNil() {
			return nil
		}
		items := make([]any, v.Len())
		for i := range items {
			items[i] = written(v.Index(i))
		}
		return items
	case reflect.Map:
		entries := map[string]any{}
		pairs := [][2]any{}
		for _, key := range v.MapKeys() {
			value := written(v.MapIndex(key))
			for key.Kind() == reflect.Interface && !key.IsNil() {
				key = key.Elem()
			}
			pairs = append(pairs, [2]any{written(key), value})
			if key.Kind() == reflect.String {
				entries[key.String()] = value
			}
		}
		if len(entries) == len(pairs) {
			return entries
		}
		sort.Slice(pairs, func(i, j int) bool { return fmt.Sprint(pairs[i][0]) < fmt.Sprint(pairs[j][0]) })
		return map[string]any{"$pairs": pairs}
	}
	if v.CanInt() {
		return v.Int()
	}
	if v.CanUint() {
		return v.Uint()
	}
	return map[string]any{"$other": v.Type().String()}
}

// Whole numbers as such: JSON has no other types of numbers, and Go would read all of them as decimals.
func whole(value any) any {
	switch x := value.(type) {
	case json.Number:
		if number, err := x.Int64(); err == nil {
			return int(number)
		}
		number, _ := x.Float64()
		return number
	case []any:
		for i := range x {
			x[i] = whole(x[i])
		}
	case map[string]any:
		for key := range x {
			x[key] = whole(x[key])
		}
	}
	return value
}

func main() {
	var asked questions
	var kept json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&kept); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.Unmarshal(kept, &asked); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ask := answer
	if asked.Dynamic {
		ask = answerDynamic
		decoder := json.NewDecoder(strings.NewReader(string(kept)))
		decoder.UseNumber()
		if err := decoder.Decode(&asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		whole(asked.Environment)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	for _, source := range asked.Sources {
		if err := encoder.Encode(ask(source, asked.Environment)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
