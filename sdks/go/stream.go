package penstock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "penstock.io/go/internal/penstockv1"
)

const (
	messageBytes = 1 << 20 // of results in one message of the stream; what is larger goes as a call of its own
	maxMessage   = 64 << 20
	maxCredit    = 10_000
)

// workStream gets jobs over gRPC within the credit that it gives, and reports on the same stream.
type workStream struct {
	session *session
	conn    *grpc.ClientConn
	client  pb.WorkerClient
	mu      sync.Mutex
	stream  *openStream
	opened  chan struct{} // closed when a stream is there
}

func newWorkStream(s *session, engine *url.URL) (*workStream, error) {
	secure := insecure.NewCredentials()
	if engine.Scheme == "grpcs" {
		config := s.opts.TLS
		if config == nil {
			config = &tls.Config{}
		}
		secure = credentials.NewTLS(config.Clone())
	}
	conn, err := grpc.NewClient("passthrough:///"+engine.Host,
		grpc.WithTransportCredentials(secure), grpc.WithNoProxy(), // an engine is an inner service
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: grpcbackoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.25, MaxDelay: maxPause}, MinConnectTimeout: 10 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}))
	if err != nil {
		return nil, fmt.Errorf("penstock: %w", err)
	}
	return &workStream{session: s, conn: conn, client: pb.NewWorkerClient(conn), opened: make(chan struct{})}, nil
}

func (w *workStream) close() { _ = w.conn.Close() }

func (w *workStream) authorized(ctx context.Context) (context.Context, error) {
	token := w.session.opts.Token
	if token == nil {
		return ctx, nil
	}
	text, err := token(ctx)
	if err != nil {
		return nil, &Error{Code: "unauthenticated", Reason: err.Error()}
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+text), nil
}

func (w *workStream) run(ctx context.Context) error {
	outages, answered, away := newBackoff(maxPause), false, false
	for {
		stream, err := w.open(ctx)
		if err == nil {
			if away {
				w.session.renew()
			}
			err = stream.read(func() { answered, away = true, false; outages.reset() })
			w.closed(stream, err)
		}
		if ctx.Err() != nil {
			return nil
		}
		if !mayPass(err, answered) {
			return err
		}
		away = true
		w.session.log.Warn("the stream to the engine ended", "error", err)
		if !sleep(ctx, outages.pause(err)) {
			return nil
		}
	}
}

func (w *workStream) open(ctx context.Context) (*openStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	ctx, err := w.authorized(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	call, err := w.client.Work(ctx)
	if err != nil {
		cancel()
		return nil, grpcError(err)
	}
	stream := &openStream{
		session: w.session, call: call, cancel: cancel, granted: map[string]int{}, askedBack: map[string]bool{},
		news: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	go stream.write()
	w.mu.Lock()
	w.stream = stream
	close(w.opened)
	w.mu.Unlock()
	return stream, nil
}

func (w *workStream) closed(stream *openStream, err error) {
	w.mu.Lock()
	w.stream = nil
	w.opened = make(chan struct{})
	w.mu.Unlock()
	stream.end(err)
}

func (w *workStream) send(ctx context.Context, kind resultKind, items []*result) ([]outcome, error) {
	var outcomes []outcome
	for len(items) > 0 {
		size, count := 0, 0
		for count < len(items) && (count == 0 || size+len(items[count].Variables) <= messageBytes) {
			size += len(items[count].Variables)
			count++
		}
		got, err := w.sendPart(ctx, kind, items[:count], size > messageBytes)
		if err != nil {
			return nil, err
		}
		outcomes = append(outcomes, got...)
		items = items[count:]
	}
	return outcomes, nil
}

func (w *workStream) sendPart(ctx context.Context, kind resultKind, items []*result, large bool) ([]outcome, error) {
	w.mu.Lock()
	stream, opened := w.stream, w.opened
	w.mu.Unlock()
	if large || (stream == nil && kind == release) {
		return w.unary(ctx, kind, items)
	}
	for stream == nil {
		select {
		case <-opened:
		case <-ctx.Done():
			return nil, &Error{Code: "connection-failed", Reason: "there is no stream to the engine"}
		}
		w.mu.Lock()
		stream, opened = w.stream, w.opened
		w.mu.Unlock()
	}
	return stream.exchange(ctx, &batch{message: resultsMessage(kind, items), size: len(items), done: make(chan error, 1)})
}

func resultsMessage(kind resultKind, items []*result) *pb.WorkRequest {
	message := &pb.WorkRequest{}
	for _, each := range items {
		id, attempt := each.JobID, int32(each.Attempt)
		switch kind {
		case completion:
			message.Completions = append(message.Completions, &pb.Completion{JobId: id, Attempt: attempt, Variables: each.Variables})
		case failure:
			message.Failures = append(message.Failures, &pb.Failure{
				JobId: id, Attempt: attempt, Retryable: *each.Retryable, ErrorMessage: each.ErrorMessage,
				ErrorCode: each.ErrorCode, RetryAfterMs: uint32(each.RetryAfterSeconds * 1000), Variables: each.Variables,
				StackTrace: each.StackTrace,
			})
		case park:
			item := &pb.Park{JobId: id, Attempt: attempt, Signal: each.Signal}
			if each.Until != nil {
				item.Until = timestamppb.New(*each.Until)
			}
			message.Parks = append(message.Parks, item)
		case release:
			message.Releases = append(message.Releases, &pb.Release{JobId: id, Attempt: attempt})
		}
	}
	return message
}

func (w *workStream) unary(ctx context.Context, kind resultKind, items []*result) ([]outcome, error) {
	ctx, err := w.authorized(ctx)
	if err != nil {
		return nil, err
	}
	message, id := resultsMessage(kind, items), w.session.opts.ID
	var results []*pb.JobOutcome
	switch kind {
	case completion:
		answer, failed := w.client.CompleteJobs(ctx, &pb.CompleteJobsRequest{WorkerId: id, Completions: message.Completions})
		results, err = answer.GetResults(), failed
	case failure:
		answer, failed := w.client.FailJobs(ctx, &pb.FailJobsRequest{WorkerId: id, Failures: message.Failures})
		results, err = answer.GetResults(), failed
	case park:
		answer, failed := w.client.ParkJobs(ctx, &pb.ParkJobsRequest{WorkerId: id, Parks: message.Parks})
		results, err = answer.GetResults(), failed
	default:
		answer, failed := w.client.ReleaseJobs(ctx, &pb.ReleaseJobsRequest{WorkerId: id, Releases: message.Releases})
		results, err = answer.GetResults(), failed
	}
	if err != nil {
		return nil, grpcError(err)
	}
	outcomes := make([]outcome, len(results))
	for i, each := range results {
		outcomes[i] = outcome{each.JobId, outcomeNames[each.Outcome], each.Reason}
	}
	return outcomes, nil
}

func (w *workStream) beat(ctx context.Context, items []heartbeat) ([]outcome, error) {
	ctx, err := w.authorized(ctx)
	if err != nil {
		return nil, err
	}
	message := &pb.HeartbeatJobsRequest{WorkerId: w.session.opts.ID}
	for _, each := range items {
		message.Heartbeats = append(message.Heartbeats, &pb.Heartbeat{
			JobId: each.JobID, Attempt: int32(each.Attempt), LeaseSeconds: int32(each.LeaseSeconds),
			Checkpoint: each.Checkpoint, Progress: each.Progress,
		})
	}
	answer, err := w.client.HeartbeatJobs(ctx, message)
	if err != nil {
		return nil, grpcError(err)
	}
	outcomes := make([]outcome, len(answer.Results))
	for i, each := range answer.Results {
		outcomes[i] = outcome{each.JobId, outcomeNames[each.Outcome], each.Reason}
	}
	return outcomes, nil
}

var outcomeNames = map[pb.Outcome]string{
	pb.Outcome_OUTCOME_OK: "ok", pb.Outcome_OUTCOME_ALREADY_COMPLETED: "already-completed",
	pb.Outcome_OUTCOME_LEASE_LOST: "lease-lost", pb.Outcome_OUTCOME_CANCELLED: "cancelled",
	pb.Outcome_OUTCOME_NOT_FOUND: "not-found", pb.Outcome_OUTCOME_INVALID: "invalid",
	pb.Outcome_OUTCOME_UNAVAILABLE: "unavailable", pb.Outcome_OUTCOME_UNSPECIFIED: "unavailable",
}

func grpcError(err error) error {
	if errors.Is(err, io.EOF) {
		return &Error{Code: "unavailable", Reason: "the engine ended the stream", MaybeApplied: true}
	}
	told := status.Convert(err)
	code := "internal-error"
	switch told.Code() {
	case codes.Unauthenticated:
		code = "unauthenticated"
	case codes.PermissionDenied:
		code = "forbidden"
	case codes.FailedPrecondition:
		code = "gone"
	case codes.InvalidArgument, codes.Unimplemented:
		code = "bad-request"
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Aborted:
		code = "unavailable"
	}
	return &Error{Code: code, Reason: told.Message(), MaybeApplied: true}
}

// batch is results that go out in one message and are answered in one.
type batch struct {
	message  *pb.WorkRequest
	size     int
	outcomes []outcome
	done     chan error
}

// openStream is one stream: what waits to be sent, what waits for its answer, and the credit that was given.
type openStream struct {
	session *session
	call    grpc.BidiStreamingClient[pb.WorkRequest, pb.WorkResponse]
	cancel  context.CancelFunc
	news    chan struct{}
	ended   chan struct{}

	mu         sync.Mutex
	toSend     []*batch
	unanswered []*batch
	granted    map[string]int
	askedBack  map[string]bool
	over       error
}

func (o *openStream) end(err error) {
	o.cancel()
	o.mu.Lock()
	o.over = err
	waiting := append(o.unanswered, o.toSend...)
	o.unanswered, o.toSend = nil, nil
	o.mu.Unlock()
	close(o.ended)
	for _, each := range waiting {
		each.done <- brokeOff(err)
	}
}

func brokeOff(err error) error {
	return &Error{Code: "connection-failed", Reason: fmt.Sprintf("the stream broke before the answer: %v", err), MaybeApplied: true}
}

func (o *openStream) exchange(ctx context.Context, b *batch) ([]outcome, error) {
	o.mu.Lock()
	if o.over != nil {
		o.mu.Unlock()
		return nil, brokeOff(o.over)
	}
	o.toSend = append(o.toSend, b)
	o.mu.Unlock()
	o.wake()
	select {
	case err := <-b.done:
		return b.outcomes, err
	case <-ctx.Done():
		o.cancel() // an answer that is this late: the stream is of no use, and its outcomes could not be told apart
		return nil, &Error{Code: "timed-out", Reason: "no answer on the Work stream", MaybeApplied: true}
	}
}

func (o *openStream) wake() {
	select {
	case o.news <- struct{}{}:
	default:
	}
}

func (o *openStream) write() {
	s := o.session
	first := &pb.WorkRequest{WorkerId: s.opts.ID, LeaseSeconds: int32(s.opts.Lease.Seconds())}
	for message := first; ; {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		o.mu.Lock()
		if message == nil && len(o.toSend) > 0 {
			next := o.toSend[0]
			o.toSend = o.toSend[1:]
			o.unanswered = append(o.unanswered, next)
			message = next.message
		}
		credits := o.credits()
		o.mu.Unlock()
		if message == nil && len(credits) > 0 {
			message = &pb.WorkRequest{}
		}
		if message != nil {
			message.Credits = credits
			if o.call.Send(message) != nil {
				return // the reader learns why
			}
			message = nil
			continue
		}
		select {
		case <-changed:
		case <-o.news:
		case <-o.ended:
			return
		}
	}
}

// credits says what to grant, or to take back, now. Types that share a limit share its room, each at least one. The
// caller holds the lock.
func (o *openStream) credits() []*pb.Credit {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*pb.Credit
	for _, sub := range s.subs {
		room := min(s.room(sub), maxCredit)
		wanted := (room + len(sub.types) - 1) / len(sub.types)
		for _, each := range sub.types {
			granted := o.granted[each]
			switch {
			case o.askedBack[each] || wanted == granted:
			case wanted > granted:
				o.granted[each] = wanted
				found = append(found, &pb.Credit{JobType: each, Jobs: int32(wanted - granted)})
			case granted > 2*wanted+1 || s.draining: // taking a little back costs more than a few jobs that come early
				o.askedBack[each] = true
				found = append(found, &pb.Credit{JobType: each, Jobs: int32(wanted - granted)})
			}
		}
	}
	return found
}

// read takes what the engine says until the stream ends, which is always an error.
func (o *openStream) read(onAnswer func()) error {
	taken := make(chan struct{})
	go func() { // an engine that takes a stream sends its headers
		if md, err := o.call.Header(); err == nil && md != nil {
			close(taken)
		}
	}()
	answered := false
	for {
		message, err := o.call.Recv()
		select {
		case <-taken:
			if !answered && (err == nil || status.Code(err) != codes.Unauthenticated) {
				answered = true
				onAnswer()
			}
		default:
		}
		if err != nil {
			return grpcError(err)
		}
		if !answered {
			answered = true
			onAnswer()
		}
		if err := o.take(message); err != nil {
			return err
		}
	}
}

func (o *openStream) take(message *pb.WorkResponse) error {
	var back []*result
	o.mu.Lock()
	for _, each := range message.Jobs {
		o.granted[each.JobType] = max(0, o.granted[each.JobType]-1)
	}
	for _, each := range message.Credits {
		o.granted[each.JobType] = max(0, int(each.Jobs))
		delete(o.askedBack, each.JobType)
	}
	for _, each := range message.Outcomes {
		if len(o.unanswered) == 0 {
			o.mu.Unlock()
			return &Error{Code: "internal-error", Reason: "the engine answered a result that was not sent"}
		}
		first := o.unanswered[0]
		first.outcomes = append(first.outcomes, outcome{each.JobId, outcomeNames[each.Outcome], each.Reason})
		if len(first.outcomes) == first.size {
			o.unanswered = o.unanswered[1:]
			first.done <- nil
		}
	}
	o.mu.Unlock()
	for _, each := range message.Jobs {
		if !o.session.accept(jobOf(each)) {
			back = append(back, &result{kind: release, JobID: each.Id, Attempt: int(each.Attempt)})
		}
	}
	if len(back) > 0 {
		o.mu.Lock()
		o.toSend = append(o.toSend, &batch{message: resultsMessage(release, back), size: len(back), done: make(chan error, 1)})
		o.mu.Unlock()
	}
	for _, each := range message.LeaseLosses {
		o.session.lose(jobKey{each.JobId, int(each.Attempt)}, ErrLeaseLost)
	}
	for _, each := range message.Cancellations {
		o.session.lose(jobKey{each.JobId, int(each.Attempt)}, ErrCancelled)
	}
	o.wake()
	return nil
}

func jobOf(job *pb.Job) *Job {
	variables := job.Variables
	if len(variables) == 0 {
		variables = []byte("{}")
	}
	return &Job{
		ID: job.Id, Type: job.JobType, InstanceID: job.InstanceId, StepID: job.StepId, Attempt: int(job.Attempt),
		RetriesRemaining: int(job.RetriesRemaining), DefinitionID: job.DefinitionId, DefinitionVersion: int(job.DefinitionVersion),
		BusinessKey: job.BusinessKey, IdempotencyKey: job.IdempotencyKey, Variables: variables, Checkpoint: job.Checkpoint,
	}
}
