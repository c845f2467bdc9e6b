package io.penstock.sdk;

import com.google.common.util.concurrent.ListenableFuture;
import com.google.protobuf.ByteString;
import com.google.protobuf.Timestamp;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import io.grpc.stub.MetadataUtils;
import io.penstock.api.v1.Completion;
import io.penstock.api.v1.CompleteJobsRequest;
import io.penstock.api.v1.CompleteJobsResponse;
import io.penstock.api.v1.Credit;
import io.penstock.api.v1.FailJobsRequest;
import io.penstock.api.v1.FailJobsResponse;
import io.penstock.api.v1.Failure;
import io.penstock.api.v1.Heartbeat;
import io.penstock.api.v1.HeartbeatJobsRequest;
import io.penstock.api.v1.JobOutcome;
import io.penstock.api.v1.Park;
import io.penstock.api.v1.ParkJobsRequest;
import io.penstock.api.v1.ParkJobsResponse;
import io.penstock.api.v1.Release;
import io.penstock.api.v1.ReleaseJobsRequest;
import io.penstock.api.v1.ReleaseJobsResponse;
import io.penstock.api.v1.WorkRequest;
import io.penstock.api.v1.WorkResponse;
import io.penstock.api.v1.WorkerGrpc;
import java.lang.System.Logger.Level;
import java.net.URI;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;

/** Gets jobs over gRPC within the credit that it gives, and reports on the same stream. */
final class WorkStream implements Wire {
    private static final int MESSAGE_BYTES = 1 << 20; // of results in one message; what is larger goes as a call of its own
    private static final int MAX_MESSAGE = 64 << 20;
    private static final int MAX_CREDIT = 10_000;
    private static final Metadata.Key<String> AUTHORIZATION = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
    private final Session session;
    private final ManagedChannel channel;
    private volatile OpenStream stream;
    private volatile boolean stopped;
    private volatile boolean refused;

    WorkStream(Session session, String engine) {
        this.session = session;
        var address = URI.create(engine);
        ChannelCredentials credentials = engine.startsWith("grpcs") ? TlsChannelCredentials.create() : InsecureChannelCredentials.create();
        channel = Grpc.newChannelBuilder("dns:///" + address.getAuthority(), credentials)
            .proxyDetector(target -> null) // an engine is an inner service
            .maxInboundMessageSize(MAX_MESSAGE)
            .keepAliveTime(30, TimeUnit.SECONDS)
            .keepAliveTimeout(10, TimeUnit.SECONDS)
            .executor(session.threads)
            .build();
    }

    @Override
    public void close() {
        stop();
        channel.shutdownNow();
    }

    @Override
    public void stop() {
        stopped = true;
        var open = stream;
        if (open != null) open.end(new PenstockException("unavailable", "the worker ends", 0, true));
        synchronized (session) {
            session.notifyAll();
        }
    }

    private Metadata headers() {
        var headers = new Metadata();
        if (session.options.token != null) headers.put(AUTHORIZATION, "Bearer " + Rest.bearer(session.options.token));
        return headers;
    }

    @Override
    public void run() throws InterruptedException {
        var outages = new Backoff(Backoff.MAX_PAUSE_MS);
        boolean answered = false;
        boolean away = false;
        while (!stopped) {
            PenstockException failed;
            try {
                channel.resetConnectBackoff();
                var open = new OpenStream();
                open.begin();
                stream = open;
                if (away) session.renew();
                synchronized (session) {
                    session.notifyAll();
                }
                if (stopped) open.end(new PenstockException("unavailable", "the worker ends", 0, true));
                failed = open.ended.get();
                if (open.wasAnswered(failed)) {
                    answered = true;
                    outages.reset();
                }
            } catch (PenstockException | ExecutionException error) {
                failed = Rest.errorOf(error);
            }
            stream = null;
            if (stopped) return;
            if (!failed.mayPass(answered)) {
                refused = true;
                throw failed;
            }
            away = true;
            Session.LOG.log(Level.WARNING, "the stream to the engine ended: {0}", failed.getMessage());
            session.until(() -> stopped, outages.pause(failed));
        }
    }

    // -- reports

    @Override
    public List<Outcome> send(Kind kind, List<Result> items, long timeoutMs) {
        var outcomes = new ArrayList<Outcome>();
        for (int at = 0; at < items.size();) {
            long size = 0;
            int end = at;
            do size += sizeOf(items.get(end++));
            while (end < items.size() && size + sizeOf(items.get(end)) <= MESSAGE_BYTES);
            var part = items.subList(at, end);
            var open = stream;
            if (size > MESSAGE_BYTES || refused || (open == null && kind == Kind.RELEASE)) outcomes.addAll(unary(kind, part, timeoutMs));
            else outcomes.addAll(onStream(kind, part, timeoutMs));
            at = end;
        }
        return outcomes;
    }

    private static long sizeOf(Result item) {
        return item.variables == null ? 0 : item.variables.length();
    }

    private List<Outcome> onStream(Kind kind, List<Result> items, long timeoutMs) {
        try {
            session.until(() -> stream != null, timeoutMs);
            var open = stream;
            if (open == null) throw new PenstockException("connection-failed", "there is no stream to the engine", 0, false);
            try {
                return open.exchange(message(kind, items), items.size()).get(timeoutMs, TimeUnit.MILLISECONDS);
            } catch (TimeoutException late) { // its outcomes could not be told apart any more
                var error = new PenstockException("timed-out", "no answer on the Work stream", 0, true);
                open.end(error);
                throw error;
            }
        } catch (ExecutionException error) {
            throw Rest.errorOf(error);
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
            throw new PenstockException("connection-failed", "interrupted", 0, true);
        }
    }

    private static WorkRequest.Builder message(Kind kind, List<Result> items) {
        var message = WorkRequest.newBuilder();
        for (var each : items) {
            var variables = bytes(each.variables);
            switch (kind) {
                case COMPLETE -> message.addCompletions(
                    Completion.newBuilder().setJobId(each.jobId).setAttempt(each.attempt).setVariables(variables));
                case FAIL -> message.addFailures(
                    Failure.newBuilder().setJobId(each.jobId).setAttempt(each.attempt).setRetryable(each.retryable)
                        .setErrorMessage(each.errorMessage).setErrorCode(each.errorCode)
                        .setRetryAfterMs((int) Math.min(each.retryAfterMs, Integer.MAX_VALUE)).setVariables(variables)
                        .setStackTrace(each.stackTrace));
                case PARK -> message.addParks(parkOf(each));
                default -> message.addReleases(Release.newBuilder().setJobId(each.jobId).setAttempt(each.attempt));
            }
        }
        return message;
    }

    private static Park parkOf(Result item) {
        var park = Park.newBuilder().setJobId(item.jobId).setAttempt(item.attempt);
        if (item.signal != null) park.setSignal(item.signal);
        var until = item.until;
        if (until != null) park.setUntil(Timestamp.newBuilder().setSeconds(until.getEpochSecond()).setNanos(until.getNano()));
        return park.build();
    }

    private static ByteString bytes(String text) {
        return text == null ? ByteString.EMPTY : ByteString.copyFromUtf8(text);
    }

    private WorkerGrpc.WorkerFutureStub stub(long timeoutMs) {
        return WorkerGrpc.newFutureStub(channel).withMaxInboundMessageSize(MAX_MESSAGE)
            .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers()))
            .withDeadlineAfter(timeoutMs, TimeUnit.MILLISECONDS);
    }

    private List<Outcome> unary(Kind kind, List<Result> items, long timeoutMs) {
        var message = message(kind, items);
        var id = session.options.workerId;
        List<JobOutcome> results = switch (kind) {
            case COMPLETE -> WorkStream.<CompleteJobsResponse>await(stub(timeoutMs).completeJobs(
                CompleteJobsRequest.newBuilder().setWorkerId(id).addAllCompletions(message.getCompletionsList()).build())).getResultsList();
            case FAIL -> WorkStream.<FailJobsResponse>await(stub(timeoutMs).failJobs(
                FailJobsRequest.newBuilder().setWorkerId(id).addAllFailures(message.getFailuresList()).build())).getResultsList();
            case PARK -> WorkStream.<ParkJobsResponse>await(stub(timeoutMs).parkJobs(
                ParkJobsRequest.newBuilder().setWorkerId(id).addAllParks(message.getParksList()).build())).getResultsList();
            default -> WorkStream.<ReleaseJobsResponse>await(stub(timeoutMs).releaseJobs(
                ReleaseJobsRequest.newBuilder().setWorkerId(id).addAllReleases(message.getReleasesList()).build())).getResultsList();
        };
        return results.stream().map(WorkStream::outcome).toList();
    }

    @Override
    public List<Outcome> beat(List<Beat> items, long timeoutMs) {
        var request = HeartbeatJobsRequest.newBuilder().setWorkerId(session.options.workerId);
        for (var each : items)
            request.addHeartbeats(Heartbeat.newBuilder().setJobId(each.jobId()).setAttempt(each.attempt())
                .setLeaseSeconds((int) session.options.lease.toSeconds())
                .setCheckpoint(bytes(each.checkpoint())).setProgress(bytes(each.progress())));
        return await(stub(timeoutMs).heartbeatJobs(request.build())).getResultsList().stream()
            .map(each -> new Outcome(each.getJobId(), name(each.getOutcome()), each.getReason())).toList();
    }

    private static <T> T await(ListenableFuture<T> answer) {
        try {
            return answer.get();
        } catch (ExecutionException error) {
            throw errorOf(error.getCause());
        } catch (InterruptedException end) {
            answer.cancel(true);
            Thread.currentThread().interrupt();
            throw new PenstockException("connection-failed", "interrupted", 0, true);
        }
    }

    private static Outcome outcome(JobOutcome told) {
        return new Outcome(told.getJobId(), name(told.getOutcome()), told.getReason());
    }

    private static String name(io.penstock.api.v1.Outcome outcome) {
        return switch (outcome) {
            case OUTCOME_UNSPECIFIED, UNRECOGNIZED -> "unavailable";
            default -> outcome.name().substring("OUTCOME_".length()).toLowerCase(Locale.ROOT).replace('_', '-');
        };
    }

    private static PenstockException errorOf(Throwable error) {
        var status = Status.fromThrowable(error);
        var code = switch (status.getCode()) {
            case UNAUTHENTICATED -> "unauthenticated";
            case PERMISSION_DENIED -> "forbidden";
            case FAILED_PRECONDITION -> "gone";
            case INVALID_ARGUMENT, UNIMPLEMENTED -> "bad-request";
            case UNAVAILABLE, ABORTED, CANCELLED -> "unavailable";
            case DEADLINE_EXCEEDED -> "timed-out";
            case RESOURCE_EXHAUSTED -> "resource-exhausted";
            default -> "internal-error";
        };
        return new PenstockException(code, String.valueOf(status.getDescription()), 0, true);
    }

    private record Batch(int size, List<Outcome> outcomes, CompletableFuture<List<Outcome>> answer) {}

    /** One stream: what waits for its answer, and the credit that was given. Its monitor is taken after the session's. */
    private final class OpenStream implements ClientResponseObserver<WorkRequest, WorkResponse> {
        final CompletableFuture<PenstockException> ended = new CompletableFuture<>();
        private final Deque<Batch> unanswered = new ArrayDeque<>();
        private final Map<String, Integer> granted = new HashMap<>();
        private final Set<String> askedBack = new HashSet<>();
        private final AtomicReference<Metadata> opened = new AtomicReference<>();
        private final Runnable change = this::grant;
        private ClientCallStreamObserver<WorkRequest> call;
        private boolean answered;
        private boolean over;

        void begin() {
            var capture = MetadataUtils.newCaptureMetadataInterceptor(opened, new AtomicReference<>());
            WorkerGrpc.newStub(channel).withMaxInboundMessageSize(MAX_MESSAGE)
                .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers()), capture).work(this);
            var first = WorkRequest.newBuilder().setWorkerId(session.options.workerId)
                .setLeaseSeconds((int) session.options.lease.toSeconds());
            synchronized (session) {
                synchronized (this) {
                    write(first.addAllCredits(credits()));
                }
            }
            session.onChange(change);
        }

        @Override
        public void beforeStart(ClientCallStreamObserver<WorkRequest> requests) {
            call = requests;
        }

        /** Whether the engine has said that it takes the stream. */
        synchronized boolean wasAnswered(PenstockException failed) {
            return answered || (opened.get() != null && !failed.code().equals("unauthenticated"));
        }

        void end(PenstockException error) {
            List<Batch> waiting;
            synchronized (this) {
                if (over) return;
                over = true;
                waiting = List.copyOf(unanswered);
                unanswered.clear();
            }
            session.offChange(change);
            call.cancel("the stream is over", null);
            var broken = new PenstockException("connection-failed", "the stream broke before the answer: " + error.reason(), 0, true);
            waiting.forEach(each -> each.answer().completeExceptionally(broken));
            ended.complete(error);
        }

        CompletableFuture<List<Outcome>> exchange(WorkRequest.Builder message, int size) {
            var batch = new Batch(size, new ArrayList<>(), new CompletableFuture<>());
            synchronized (session) {
                synchronized (this) {
                    if (over) return CompletableFuture.failedFuture(new PenstockException("connection-failed", "the stream is over", 0, true));
                    unanswered.add(batch);
                    write(message.addAllCredits(credits()));
                }
            }
            return batch.answer();
        }

        private void write(WorkRequest.Builder message) {
            try {
                call.onNext(message.build());
            } catch (IllegalStateException ended) { // cancelled meanwhile: onError says why
                Session.LOG.log(Level.DEBUG, "not sent: {0}", ended.getMessage());
            }
        }

        private void grant() {
            synchronized (session) {
                synchronized (this) {
                    if (over) return;
                    var credits = credits();
                    if (!credits.isEmpty()) write(WorkRequest.newBuilder().addAllCredits(credits));
                }
            }
        }

        /** What to grant, or to take back, now. Types that share a limit share its room, each at least one. */
        private List<Credit> credits() {
            var found = new ArrayList<Credit>();
            for (var subscription : session.subscriptions) {
                int room = Math.min(session.room(subscription), MAX_CREDIT);
                int wanted = (room + subscription.types.size() - 1) / subscription.types.size();
                for (var type : subscription.types) {
                    int given = granted.getOrDefault(type, 0);
                    if (askedBack.contains(type) || wanted == given) continue;
                    if (wanted > given) granted.put(type, wanted);
                    // Taking a little back costs more than a few jobs that come early.
                    else if (given > 2 * wanted + 1 || session.isDraining()) askedBack.add(type);
                    else continue;
                    found.add(Credit.newBuilder().setJobType(type).setJobs(wanted - given).build());
                }
            }
            return found;
        }

        @Override
        public void onNext(WorkResponse message) {
            synchronized (this) {
                answered = true;
                if (over) return;
                message.getJobsList().forEach(each -> granted.merge(each.getJobType(), -1, (left, one) -> Math.max(0, left + one)));
                for (var each : message.getCreditsList()) {
                    granted.put(each.getJobType(), Math.max(0, each.getJobs()));
                    askedBack.remove(each.getJobType());
                }
                for (var each : message.getOutcomesList()) {
                    var first = unanswered.peek();
                    if (first == null) break;
                    first.outcomes().add(outcome(each));
                    if (first.outcomes().size() == first.size()) unanswered.poll().answer().complete(first.outcomes());
                }
            }
            if (message.getJobsCount() > 0) {
                var back = session.accept(message.getJobsList().stream().map(WorkStream::jobOf).toList());
                if (!back.isEmpty()) exchange(message(Kind.RELEASE, back), back.size());
            }
            message.getLeaseLossesList().forEach(each -> session.lose(each.getJobId(), each.getAttempt(), StopReason.LEASE_LOST));
            message.getCancellationsList().forEach(each -> session.lose(each.getJobId(), each.getAttempt(), StopReason.CANCELLED));
            grant();
        }

        @Override
        public void onError(Throwable error) {
            end(errorOf(error));
        }

        @Override
        public void onCompleted() {
            end(new PenstockException("unavailable", "the engine ended the stream", 0, true));
        }
    }

    private static Job.Data jobOf(io.penstock.api.v1.Job job) {
        return new Job.Data(job.getId(), job.getJobType(), job.getInstanceId(), job.getStepId(), job.getAttempt(),
            job.getRetriesRemaining(), job.getDefinitionId(), job.getDefinitionVersion(),
            job.getBusinessKey().isEmpty() ? null : job.getBusinessKey(), job.getIdempotencyKey(),
            Json.read(job.getVariables().isEmpty() ? "{}" : job.getVariables().toStringUtf8()),
            job.getCheckpoint().isEmpty() ? null : Json.read(job.getCheckpoint().toStringUtf8()));
    }
}
