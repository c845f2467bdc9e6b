package penstock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// WorkerOptions say how a worker works; the zero value is a good start.
type WorkerOptions struct {
	Options
	ID            string        // the holder of the leases, unique per running worker; made up where empty
	Concurrency   int           // jobs worked on at once; 16
	Lease         time.Duration // 5 s to an hour; 30 s. After it others get the jobs of a dead worker
	PollWait      time.Duration // how long the engine holds a poll, at most 60 s; 20 s
	DrainGrace    time.Duration // how long handlers may go on after the stop; 20 s. Negative: not at all
	MaxUnreported int           // with so many results that could not be delivered no new jobs are taken; 1000
	Logger        *slog.Logger
}

// HandlerOptions of one job type.
type HandlerOptions struct {
	Concurrency int           // jobs of this type at once; the worker's own limit holds as well
	Timeout     time.Duration // of one attempt
}

type registered struct {
	jobType string
	handler Handler
	limit   int
	timeout time.Duration
}

// Worker takes jobs from an engine, runs their handlers and reports the results.
type Worker struct {
	engine   *url.URL
	opts     WorkerOptions
	handlers map[string]*registered
	mu       sync.Mutex
	session  *session
}

// NewWorker makes a worker for an engine's URL: http:// or https:// for long polls, grpc:// or grpcs:// for the Work stream.
func NewWorker(engine string, opts WorkerOptions) (*Worker, error) {
	parsed, err := url.Parse(engine)
	if err != nil || parsed.Host == "" {
		return nil, fmt.Errorf("penstock: not a URL: %q", engine)
	}
	switch parsed.Scheme {
	case "http", "https", "grpc", "grpcs":
	default:
		return nil, fmt.Errorf("penstock: not an http://, https://, grpc:// or grpcs:// URL: %q", engine)
	}
	if opts.ID == "" {
		host, _ := os.Hostname()
		opts.ID = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), newKey()[:8])
	}
	orElse(&opts.Concurrency, 16)
	orElse(&opts.Lease, 30*time.Second)
	orElse(&opts.PollWait, 20*time.Second)
	orElse(&opts.DrainGrace, 20*time.Second)
	orElse(&opts.MaxUnreported, 1000)
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Concurrency < 1 || opts.Lease < 5*time.Second || opts.Lease > time.Hour {
		return nil, errors.New("penstock: Concurrency is at least 1, Lease 5 s to an hour")
	}
	return &Worker{engine: parsed, opts: opts, handlers: map[string]*registered{}}, nil
}

func orElse[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}

// Handle registers the handler of a job type, before Run. It panics for a type that has one.
func (w *Worker) Handle(jobType string, handler Handler, opts ...HandlerOptions) {
	if w.handlers[jobType] != nil {
		panic("penstock: job type " + jobType + " has a handler already")
	}
	made := &registered{jobType: jobType, handler: handler}
	for _, each := range opts {
		made.limit, made.timeout = each.Concurrency, each.Timeout
	}
	w.handlers[jobType] = made
}

// Stop lets the running worker drain: no new jobs, and those that it has have the grace to finish. Again: ends the grace.
func (w *Worker) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session != nil {
		w.session.drain()
	}
}

// Run works until the context ends or Stop is called, then drains. It returns an error only when the engine refuses to
// give jobs to this worker at all. An engine that is away is waited for.
func (w *Worker) Run(ctx context.Context) error {
	if len(w.handlers) == 0 {
		return errors.New("penstock: the worker has no handlers")
	}
	made := newSession(w)
	wire, err := w.connect(made)
	if err != nil {
		return err
	}
	defer wire.close()
	made.wire = wire
	w.mu.Lock()
	w.session = made
	w.mu.Unlock()
	return made.run(ctx)
}

// RunUntilSignal is Run for a program that is only this worker: SIGTERM and SIGINT drain it, a second one ends the grace.
func (w *Worker) RunUntilSignal() error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer close(signals)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-signals
		cancel()
		for range signals {
			w.Stop()
		}
	}()
	return w.Run(ctx)
}

func (w *Worker) connect(s *session) (wire, error) {
	switch w.engine.Scheme {
	case "http", "https":
		base := *w.engine
		return newLongPoll(s, newCaller(base.Scheme+"://"+base.Host+base.Path, w.opts.Options)), nil
	}
	return newWorkStream(s, w.engine)
}
