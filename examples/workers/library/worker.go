// go run worker.go: the same with the contract's library for Go (a module of its own that requires workflow-sdk-go).
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/batnam/rochallor-engine/workflow-sdk-go/client"
	"github.com/batnam/rochallor-engine/workflow-sdk-go/handler"
	"github.com/batnam/rochallor-engine/workflow-sdk-go/runner"
)

func main() {
	registry := handler.New()
	registry.Register("greeting.say", func(_ context.Context, job handler.JobContext) (handler.Result, error) {
		name, _ := job.Variables["name"].(string)
		return handler.Result{VariablesToSet: map[string]any{"greeting": "Hello, " + name}}, nil
	})
	until, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	engine := client.NewRest(os.Getenv("PENSTOCK_URL"), "go-1")
	runner.New(runner.Config{WorkerID: "go-1"}, engine, registry).Run(until)
}
