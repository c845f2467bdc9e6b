package penstock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	cleanUp        = 5 * time.Second // after the grace, for handlers that were told to stop
	lastCalls      = 5 * time.Second // for the last results, and to give jobs back
	maxWaiting     = 5 * time.Second // a job that waits for its turn for longer goes back
	maxBatch       = 200
	maxBeats       = 500
	maxFaults      = 8 // of a report that the engine stumbles over
	beatsPerLease  = 3
	looksPerLease  = 12
	callLimit      = 15 * time.Second
	heartbeatLimit = 10 * time.Second
)

// wire is a connection to the engine. Its calls may be repeated safely; each returns one outcome per item.
type wire interface {
	run(ctx context.Context) error // brings jobs until the context ends; an error is a refusal for good
	send(ctx context.Context, kind resultKind, items []*result) ([]outcome, error)
	beat(ctx context.Context, items []heartbeat) ([]outcome, error)
	close()
}

// subscription is job types that are asked for together: those without a limit of their own, or one with.
type subscription struct {
	types  []string
	limit  int
	active int
	slots  chan struct{}
}

// session is one run of a worker.
type session struct {
	worker *Worker
	opts   WorkerOptions
	log    *slog.Logger
	wire   wire
	subs   []*subscription
	byType map[string]*subscription
	slots  chan struct{}

	mu        sync.Mutex
	held      map[jobKey]*heldJob
	active    int // handlers that run or wait for their turn
	queued    int // results that are not settled
	draining  bool
	changed   chan struct{} // closed and made anew when room, or what is held, changes
	stopped   chan struct{} // closed when the drain begins
	noGrace   chan struct{} // closed when the grace is to end
	hurry     chan struct{} // heartbeats at once
	reports   map[resultKind]chan *result
	beatsFail atomic.Bool
}

func newSession(w *Worker) *session {
	s := &session{
		worker: w, opts: w.opts, log: w.opts.Logger.With("worker", w.opts.ID), held: map[jobKey]*heldJob{},
		byType: map[string]*subscription{}, slots: make(chan struct{}, w.opts.Concurrency), changed: make(chan struct{}),
		stopped: make(chan struct{}), noGrace: make(chan struct{}), hurry: make(chan struct{}, 1),
		reports: map[resultKind]chan *result{},
	}
	shared := &subscription{limit: w.opts.Concurrency}
	for name, each := range w.handlers {
		sub := shared
		if each.limit > 0 {
			sub = &subscription{limit: each.limit, slots: make(chan struct{}, each.limit)}
			s.subs = append(s.subs, sub)
		}
		sub.types = append(sub.types, name)
		s.byType[name] = sub
	}
	if len(shared.types) > 0 {
		s.subs = append(s.subs, shared)
	}
	return s
}

// run works until drained.
func (s *session) run(ctx context.Context) error {
	services, endServices := context.WithCancel(context.Background())
	defer endServices()
	var background sync.WaitGroup
	for _, kind := range []resultKind{completion, failure, park} {
		s.reports[kind] = make(chan *result, s.opts.MaxUnreported+s.opts.Concurrency+1000)
		background.Go(func() { s.deliver(services, kind, s.reports[kind]) })
	}
	background.Go(func() { s.keepLeases(services) })
	background.Go(func() { s.returnWaiting(services) })
	source, endSource := context.WithCancel(context.Background())
	defer endSource()
	refused := make(chan error, 1)
	background.Go(func() {
		err := s.wire.run(source)
		if err != nil {
			s.log.Error("the engine gives this worker no jobs", "error", err, "to do", whatToDo(err))
			s.mu.Lock()
			if !s.draining {
				s.beginDrain()
			}
			s.mu.Unlock()
		}
		refused <- err
	})
	s.log.Info("worker started", "types", len(s.byType))
	select {
	case <-ctx.Done():
		s.drain()
	case <-s.stopped:
	}
	s.finish()
	endSource()
	err := <-refused
	endServices()
	background.Wait()
	s.log.Info("worker stopped")
	return err
}

// drain takes on no more jobs; again, it ends the grace.
func (s *session) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining {
		s.beginDrain()
		return
	}
	select {
	case <-s.noGrace:
	default:
		close(s.noGrace)
	}
}

func (s *session) beginDrain() {
	s.draining = true
	close(s.stopped)
	s.notify()
}

func (s *session) finish() {
	s.giveBack(s.matching(func(h *heldJob) bool { return !h.begun }))
	grace := max(s.opts.DrainGrace, 0)
	s.waitUntil(grace, s.noGrace, func() bool { return s.active == 0 })
	for _, each := range s.matching(func(h *heldJob) bool { return true }) {
		if each.ctx.Err() == nil && s.isRunning(each) {
			each.stop(ErrStopping)
		}
	}
	s.waitUntil(cleanUp, nil, func() bool { return s.active == 0 })
	s.waitUntil(lastCalls, nil, func() bool { return s.queued == 0 })
	s.mu.Lock()
	if s.queued > 0 || s.active > 0 {
		s.log.Error("the engine did not take all results, or handlers go on: these jobs will be done again", "results", s.queued, "handlers", s.active)
	}
	s.mu.Unlock()
	s.giveBack(s.matching(func(h *heldJob) bool { return true }))
}

func (s *session) isRunning(h *heldJob) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.begun
}

// notify wakes those that wait for a change. The caller holds the lock.
func (s *session) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *session) waitUntil(limit time.Duration, sooner <-chan struct{}, holds func() bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		s.mu.Lock()
		done, changed := holds(), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-sooner:
			return
		}
	}
}

func (s *session) matching(wanted func(*heldJob) bool) []*heldJob {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*heldJob
	for _, each := range s.held {
		if wanted(each) {
			found = append(found, each)
		}
	}
	return found
}

// room is how many more jobs of a subscription the worker takes now. The caller holds the lock.
func (s *session) room(sub *subscription) int {
	if s.draining || s.queued >= s.opts.MaxUnreported {
		return 0
	}
	return max(0, min(s.opts.Concurrency-s.active, sub.limit-sub.active))
}

func (s *session) roomOf(sub *subscription) (int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room(sub), s.changed
}

// accept takes a job on. False when the worker has no use for it: it is to be given back.
func (s *session) accept(job *Job) bool {
	sub := s.byType[job.Type]
	now := time.Now()
	ctx, cancel := context.WithCancelCause(context.Background())
	held := &heldJob{session: s, job: job, sub: sub, ctx: ctx, cancel: cancel, receivedAt: now, leaseEnds: now.Add(s.opts.Lease)}
	job.held = held
	s.mu.Lock()
	if sub == nil || s.draining {
		s.mu.Unlock()
		cancel(nil)
		return false
	}
	if s.held[held.key()] != nil { // it came twice
		s.mu.Unlock()
		cancel(nil)
		return true
	}
	s.held[held.key()] = held
	s.active++
	sub.active++
	s.mu.Unlock()
	go s.work(held)
	return true
}

func (s *session) work(held *heldJob) {
	made := held.failure("the handler ended its goroutine (runtime.Goexit)", true)
	defer func() { s.worked(held, made) }() // Goexit passes by whatever is not deferred
	made = s.inTurn(held)
}

func (s *session) worked(held *heldJob, made *result) {
	s.mu.Lock()
	s.active--
	held.sub.active--
	if made != nil && held.settled {
		made = nil
	}
	if made != nil {
		s.queued++
	}
	s.notify()
	s.mu.Unlock()
	if made == nil {
		held.cancel(nil)
		return
	}
	s.reports[made.kind] <- made
}

// inTurn waits for free slots and runs the handler.
func (s *session) inTurn(held *heldJob) *result {
	for _, slots := range []chan struct{}{held.sub.slots, s.slots} {
		if slots == nil {
			continue
		}
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-held.ctx.Done():
			return nil
		}
	}
	s.mu.Lock()
	held.begun = !held.settled
	begun := held.begun
	s.mu.Unlock()
	if !begun {
		return nil
	}
	made := held.run(s.worker.handlers[held.job.Type])
	if made != nil && made.kind == failure {
		s.log.Warn("job failed", "job", made.JobID, "type", held.job.Type, "attempt", made.Attempt, "error", made.ErrorMessage)
	}
	return made
}

// lose takes a job away that is not this worker's any more: its handler stops, and nothing is reported.
func (s *session) lose(key jobKey, why error) {
	s.mu.Lock()
	held := s.held[key]
	if held != nil {
		delete(s.held, key)
		held.settled = true
		s.notify()
	}
	s.mu.Unlock()
	if held != nil {
		s.log.Warn("job lost", "job", key.id, "attempt", key.attempt, "reason", why)
		held.stop(why)
	}
}

func (s *session) giveBack(jobs []*heldJob) {
	if len(jobs) == 0 {
		return
	}
	var items []*result
	s.mu.Lock()
	for _, each := range jobs {
		if !each.settled {
			each.settled = true
			delete(s.held, each.key())
			items = append(items, &result{kind: release, JobID: each.job.ID, Attempt: each.job.Attempt})
		}
	}
	s.notify()
	s.mu.Unlock()
	for _, each := range jobs {
		each.stop(ErrStopping)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastCalls)
	defer cancel()
	for len(items) > 0 {
		part := items[:min(len(items), maxBatch)]
		items = items[len(part):]
		if _, err := s.wire.send(ctx, release, part); err != nil {
			s.log.Warn("jobs could not be given back: their leases will end", "jobs", len(part), "error", err)
			return
		}
	}
}

// returnWaiting gives back jobs whose turn does not come: another worker may be free.
func (s *session) returnWaiting(ctx context.Context) {
	for sleep(ctx, maxWaiting/2) {
		s.giveBack(s.matching(func(h *heldJob) bool { return !h.begun && time.Since(h.receivedAt) > maxWaiting }))
	}
}

// -- leases

func (s *session) keepLeases(ctx context.Context) {
	look := time.NewTicker(s.opts.Lease / looksPerLease)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-s.hurry:
		}
		left := s.opts.Lease*(beatsPerLease-1)/beatsPerLease + s.opts.Lease/looksPerLease
		due := s.matching(func(h *heldJob) bool { return time.Until(h.leaseEnds) <= left })
		for len(due) > 0 {
			part := due[:min(len(due), maxBeats)]
			due = due[len(part):]
			s.extend(ctx, part)
		}
	}
}

// renew asks for all leases at once, to learn which jobs were given to others.
func (s *session) renew() {
	s.mu.Lock()
	for _, each := range s.held {
		each.leaseEnds = time.Now()
	}
	s.mu.Unlock()
	select {
	case s.hurry <- struct{}{}:
	default:
	}
}

func (s *session) extend(ctx context.Context, due []*heldJob) {
	sent := time.Now()
	items := make([]heartbeat, len(due))
	for i, each := range due {
		items[i] = heartbeat{JobID: each.job.ID, Attempt: each.job.Attempt, LeaseSeconds: int(s.opts.Lease.Seconds())}
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.opts.Lease/3, heartbeatLimit))
	defer cancel()
	outcomes, err := s.wire.beat(ctx, items)
	if err != nil || len(outcomes) != len(due) {
		if !s.beatsFail.Swap(true) {
			s.log.Warn("heartbeats fail: others get these jobs unless the engine answers in time", "jobs", len(due), "lease", s.opts.Lease, "error", err)
		}
		return
	}
	s.beatsFail.Store(false)
	for i, each := range due {
		s.extended(each, outcomes[i], sent)
	}
}

func (s *session) extended(held *heldJob, told outcome, sent time.Time) error {
	switch told.Outcome {
	case "ok":
		s.mu.Lock()
		held.leaseEnds = sent.Add(s.opts.Lease)
		s.mu.Unlock()
		return nil
	case "cancelled":
		s.lose(held.key(), ErrCancelled)
		return ErrCancelled
	case "lease-lost", "not-found", "already-completed":
		s.lose(held.key(), ErrLeaseLost)
		return ErrLeaseLost
	}
	return &Error{Code: told.Outcome, Reason: told.Reason}
}

func (s *session) report(ctx context.Context, held *heldJob, beat heartbeat) error {
	beat.LeaseSeconds = int(s.opts.Lease.Seconds())
	pauses := newBackoff(maxPause)
	for {
		sent := time.Now()
		call, cancel := context.WithTimeout(ctx, callLimit)
		outcomes, err := s.wire.beat(call, []heartbeat{beat})
		cancel()
		if err == nil && len(outcomes) == 1 {
			err = s.extended(held, outcomes[0], sent)
		}
		if err == nil || !isUnavailable(ErrorCode(err)) || !sleep(ctx, pauses.pause(err)) {
			return err
		}
	}
}

// -- results

// deliver sends results of one kind: those that came while the last batch was under way are the next one.
func (s *session) deliver(ctx context.Context, kind resultKind, from <-chan *result) {
	pauses := newBackoff(maxPause)
	var waiting []*result
	for {
		if len(waiting) == 0 {
			select {
			case one := <-from:
				waiting = append(waiting, one)
			case <-ctx.Done():
				return
			}
		}
		for more := true; more && len(waiting) < maxBatch; {
			select {
			case one := <-from:
				waiting = append(waiting, one)
			default:
				more = false
			}
		}
		batch := waiting[:min(len(waiting), maxBatch)]
		again, err := s.exchange(ctx, kind, batch)
		waiting = append(again, waiting[len(batch):]...)
		if len(again) == 0 {
			pauses.reset()
		} else if !sleep(ctx, pauses.pause(err)) {
			return
		}
	}
}

// exchange sends a batch, or its parts where it is refused as a whole. It returns what is to be sent again.
func (s *session) exchange(ctx context.Context, kind resultKind, batch []*result) (again []*result, err error) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	outcomes, err := s.wire.send(call, kind, batch)
	cancel()
	code := ErrorCode(err)
	if err == nil && len(outcomes) != len(batch) {
		err, code = errors.New("an answer without all outcomes"), "internal-error"
	}
	switch {
	case err == nil:
		for i, told := range outcomes {
			if told.Outcome == "unavailable" {
				again = append(again, batch[i])
			} else {
				s.settle(batch[i], told)
			}
		}
		return again, nil
	case isUnavailable(code) || code == "unauthenticated" || ctx.Err() != nil:
		s.log.Debug("results wait for the engine", "results", len(batch), "error", err)
		return append(again, batch...), err
	case len(batch) > 1:
		middle := len(batch) / 2
		first, _ := s.exchange(ctx, kind, batch[:middle])
		second, err := s.exchange(ctx, kind, batch[middle:])
		return append(append(again, first...), second...), err
	case (code == "internal-error" || code == "") && batch[0].faults < maxFaults:
		batch[0].faults++
		return append(again, batch[0]), err
	}
	s.settle(batch[0], outcome{Outcome: "invalid", Reason: err.Error()})
	return nil, nil
}

func (s *session) settle(item *result, told outcome) {
	if told.Outcome == "invalid" && item.kind != failure {
		s.log.Error("the engine refused a result", "job", item.JobID, "reason", told.Reason)
		s.reports[failure] <- item.held.failure("the engine refused the result: "+told.Reason, false)
		return
	}
	if told.Outcome == "invalid" && item.Variables != nil {
		item.Variables = nil
		s.reports[failure] <- item
		return
	}
	if told.Outcome != "ok" && told.Outcome != "already-completed" {
		s.log.Warn("result not taken", "job", item.JobID, "outcome", told.Outcome, "reason", told.Reason)
	}
	s.mu.Lock()
	delete(s.held, item.held.key())
	item.held.settled = true
	s.queued--
	s.notify()
	s.mu.Unlock()
	item.held.cancel(nil)
}
