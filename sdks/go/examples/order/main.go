// Command order is the worker of examples/order-fulfilment.json.
//
//	go run ./examples/order -try     uploads the workflow, runs three orders through it and shows them
//	go run ./examples/order          only works, until Ctrl-C
//
// PENSTOCK_URL says where the engine is.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	penstock "penstock.io/go"
)

// Order is the part of the variables that these handlers read.
type Order struct {
	OrderID string   `json:"orderId"`
	Amount  int      `json:"amount,omitempty"`
	Items   []string `json:"items,omitempty"`
}

func validate(_ context.Context, _ *penstock.Job, order Order) (any, error) {
	if order.Amount < 0 { // what can never be fulfilled: retries would not help
		return nil, penstock.NonRetryable(fmt.Errorf("order %s has a negative amount: %d", order.OrderID, order.Amount))
	}
	return map[string]any{"validated": true}, nil
}

func reserve(_ context.Context, _ *penstock.Job, order Order) (any, error) {
	return map[string]any{"reservation": "r-" + order.OrderID}, nil
}

// The payment service charges once for a key, however often the job comes.
func charge(_ context.Context, job *penstock.Job, order Order) (any, error) {
	if len(order.Items) == 1 && order.Items[0] == "flaky" && job.Attempt == 1 {
		return nil, penstock.RetryAfter(errors.New("the payment service asks to come back"), 100*time.Millisecond)
	}
	return map[string]any{"paymentId": fmt.Sprintf("%.6x", sha256.Sum256([]byte(job.IdempotencyKey)))}, nil
}

func ship(_ context.Context, _ *penstock.Job, order Order) (any, error) {
	return map[string]any{"trackingNumber": "PS-" + order.OrderID}, nil
}

func notify(_ context.Context, job *penstock.Job, _ Order) (any, error) {
	log.Printf("order of instance %s is on its way", job.InstanceID)
	return nil, nil
}

func tryIt(url string) error {
	client, err := penstock.NewClient(url, penstock.Options{})
	if err != nil {
		return err
	}
	text, err := os.ReadFile("../../examples/order-fulfilment.json")
	if err != nil {
		return err
	}
	ctx := context.Background()
	if err := client.UploadDefinition(ctx, text); err != nil {
		return err
	}
	for _, order := range []Order{{"A-1", 25, []string{"book"}}, {"A-2", 40, []string{"flaky"}}, {OrderID: "A-3", Amount: -1}} {
		made, err := client.Start(ctx, penstock.StartRequest{DefinitionID: "order-fulfilment", Variables: order, WaitSeconds: 60})
		if err != nil {
			return err
		}
		fmt.Println(order.OrderID, made.Status, made.FailureReason)
	}
	return nil
}

func main() {
	try := flag.Bool("try", false, "run three orders through the workflow")
	flag.Parse()
	url := cmp.Or(os.Getenv("PENSTOCK_URL"), "http://127.0.0.1:8080")
	worker, err := penstock.NewWorker(url, penstock.WorkerOptions{Concurrency: 32})
	if err != nil {
		log.Fatal(err)
	}
	worker.Handle("order.validate", penstock.Typed(validate))
	worker.Handle("stock.reserve", penstock.Typed(reserve), penstock.HandlerOptions{Concurrency: 8})
	worker.Handle("payment.charge", penstock.Typed(charge), penstock.HandlerOptions{Timeout: 30 * time.Second})
	worker.Handle("parcel.ship", penstock.Typed(ship))
	worker.Handle("customer.notify", penstock.Typed(notify))
	if *try {
		go func() {
			if err := tryIt(url); err != nil {
				log.Print(err)
			}
			worker.Stop()
		}()
	}
	if err := worker.RunUntilSignal(); err != nil {
		log.Fatal(err)
	}
}
