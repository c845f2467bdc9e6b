// River: jobs that do nothing, inserted and worked off by one process. The protocol is that of programs/measured.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type Nothing struct{}

func (Nothing) Kind() string { return "nothing" }

type Worker struct {
	river.WorkerDefaults[Nothing]
	done *atomic.Int64
}

func (w *Worker) Work(context.Context, *river.Job[Nothing]) error {
	w.done.Add(1)
	return nil
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func feed(ctx context.Context, client *river.Client[pgx.Tx], asked, done *atomic.Int64, size, ahead int64) {
	many := make([]river.InsertManyParams, size)
	for i := range many {
		many[i] = river.InsertManyParams{Args: Nothing{}}
	}
	for ctx.Err() == nil {
		if asked.Load()-done.Load()+size > ahead {
			time.Sleep(time.Millisecond)
			continue
		}
		asked.Add(size)
		var err error
		if size == 1 {
			_, err = client.Insert(ctx, Nothing{}, nil)
		} else {
			_, err = client.InsertManyFast(ctx, many)
		}
		if ctx.Err() == nil {
			must(err)
		}
	}
}

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	best := os.Args[2] == "best"
	seconds, err := strconv.ParseFloat(os.Args[3], 64)
	must(err)
	pool, err := pgxpool.New(ctx, os.Args[1])
	must(err)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	must(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	must(err)
	var asked, done atomic.Int64
	workers := river.NewWorkers()
	river.AddWorker(workers, &Worker{done: &done})
	size, feeders, ahead, most := int64(1), 8, int64(500), 100
	config := &river.Config{Workers: workers, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))}
	if best {
		size, feeders, ahead, most = 500, 2, 5_000, 2_000
		config.FetchCooldown = 2 * time.Millisecond
		config.FetchPollInterval = 20 * time.Millisecond
	}
	config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: most}}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	must(err)
	must(client.Start(ctx))
	for range feeders {
		go feed(ctx, client, &asked, &done, size, ahead)
	}
	time.Sleep(time.Second)
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	before, began := done.Load(), time.Now()
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	json.NewEncoder(os.Stdout).Encode(map[string]any{"steps": done.Load() - before, "seconds": time.Since(began).Seconds()})
	cancel()
}
