package io.penstock.sdk;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayOutputStream;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.time.format.DateTimeFormatter;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Executor;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;

/** Exchanges over REST. */
final class Rest {
    private static final Map<Integer, String> BY_STATUS = Map.ofEntries(
        Map.entry(400, "bad-request"), Map.entry(401, "unauthenticated"), Map.entry(403, "forbidden"),
        Map.entry(404, "not-found"), Map.entry(408, "unavailable"), Map.entry(409, "conflict"), Map.entry(410, "gone"),
        Map.entry(413, "payload-too-large"), Map.entry(429, "resource-exhausted"), Map.entry(502, "unavailable"),
        Map.entry(503, "unavailable"), Map.entry(504, "unavailable"));

    record Request(String method, String path, Object body, String idempotencyKey, Duration timeout) {}

    private static final int MAX_ANSWER = 64 << 20;
    private final HttpClient http;
    private final String base;
    private final Supplier<String> token;

    Rest(String base, Supplier<String> token) {
        this(base, token, null);
    }

    Rest(String base, Supplier<String> token, Executor executor) {
        this.base = base.replaceAll("/+$", "");
        this.token = token;
        var builder = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(10));
        if (executor != null) builder.executor(executor);
        this.http = builder.build();
    }

    /** One exchange; the future fails with PenstockException and nothing else. Cancelling it breaks the exchange off. */
    CompletableFuture<JsonNode> call(Request request) {
        CompletableFuture<HttpResponse<String>> sent;
        try {
            sent = http.sendAsync(made(request), headers -> new BoundedBody(request.timeout()));
        } catch (PenstockException error) {
            return CompletableFuture.failedFuture(error);
        } catch (IllegalArgumentException error) {
            return CompletableFuture.failedFuture(new PenstockException("bad-request", error.getMessage(), 0, false));
        }
        var answer = sent.handle((response, error) -> {
            if (error != null) throw broken(error);
            if (response.statusCode() / 100 != 2) throw refusal(response);
            return response.body().isEmpty() ? Json.VALUES.nullNode() : Json.read(response.body());
        });
        answer.whenComplete((value, error) -> {
            if (answer.isCancelled()) sent.cancel(true);
        });
        return answer;
    }

    private HttpRequest made(Request request) {
        var builder = HttpRequest.newBuilder(URI.create(base + request.path())).timeout(request.timeout());
        var body = request.body();
        builder.method(request.method(), body == null
            ? HttpRequest.BodyPublishers.noBody()
            : HttpRequest.BodyPublishers.ofString(Json.write(body)));
        if (body != null) builder.header("content-type", "application/json");
        if (request.idempotencyKey() != null) builder.header("idempotency-key", request.idempotencyKey());
        if (token != null) builder.header("authorization", "Bearer " + bearer(token));
        return builder.build();
    }

    static String bearer(Supplier<String> token) {
        try {
            return token.get();
        } catch (RuntimeException error) {
            throw new PenstockException("unauthenticated", String.valueOf(error.getMessage()), 0, false);
        }
    }

    private static PenstockException broken(Throwable error) {
        var cause = error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
        if (cause instanceof PenstockException own) return own;
        var text = cause + "";
        if (cause instanceof ConnectException) return new PenstockException("connection-failed", text, 0, false);
        var code = cause instanceof HttpTimeoutException || cause instanceof TimeoutException ? "timed-out" : "connection-failed";
        return new PenstockException(code, text, 0, true);
    }

    private static PenstockException refusal(HttpResponse<String> response) {
        int status = response.statusCode();
        var code = BY_STATUS.getOrDefault(status, "internal-error");
        var reason = "HTTP " + status + ": " + response.body().substring(0, Math.min(500, response.body().length()));
        try {
            var told = Json.read(response.body());
            if (told.hasNonNull("error")) {
                code = told.get("error").asText();
                reason = told.path("reason").asText();
            }
        } catch (PenstockException unreadable) {
            // not the engine's own answer
        }
        if (status / 100 == 3) {
            code = "redirected";
            reason = "HTTP " + status + " to " + response.headers().firstValue("location").orElse("?") + ": this is not the engine's address";
        }
        var made = new PenstockException(code, reason, status, status >= 500);
        made.retryAfter = response.headers().firstValue("retry-after").map(Rest::pauseOf).orElse(Duration.ZERO);
        return made;
    }

    private static Duration pauseOf(String text) {
        if (text.matches("\\d{1,6}")) return Duration.ofSeconds(Long.parseLong(text));
        try {
            var pause = Duration.between(Instant.now(), DateTimeFormatter.RFC_1123_DATE_TIME.parse(text, Instant::from));
            return pause.isNegative() ? Duration.ZERO : pause;
        } catch (DateTimeException neither) {
            return Duration.ZERO;
        }
    }

    /** A body as text, up to 64 MiB, within a time of its own: that of a request ends with the headers of the answer. */
    private static final class BoundedBody implements HttpResponse.BodySubscriber<String> {
        private final CompletableFuture<String> made = new CompletableFuture<>();
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        private volatile Flow.Subscription source;

        BoundedBody(Duration timeout) {
            made.orTimeout(timeout.toMillis(), TimeUnit.MILLISECONDS).whenComplete((text, error) -> {
                if (error instanceof TimeoutException && source != null) source.cancel();
            });
        }

        @Override
        public CompletionStage<String> getBody() {
            return made;
        }

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            source = subscription;
            source.request(Long.MAX_VALUE);
        }

        @Override
        public void onNext(List<ByteBuffer> parts) {
            for (var each : parts) {
                if (bytes.size() + each.remaining() > MAX_ANSWER) {
                    source.cancel();
                    made.completeExceptionally(new PenstockException("internal-error", "the answer is larger than 64 MiB", 0, true));
                    return;
                }
                var part = new byte[each.remaining()];
                each.get(part);
                bytes.writeBytes(part);
            }
        }

        @Override
        public void onError(Throwable error) {
            made.completeExceptionally(error);
        }

        @Override
        public void onComplete() {
            made.complete(bytes.toString(StandardCharsets.UTF_8));
        }
    }

    /** The PenstockException behind what a future failed with. */
    static PenstockException errorOf(Throwable error) {
        for (var each = error; each != null; each = each.getCause())
            if (each instanceof PenstockException found) return found;
        return new PenstockException("connection-failed", String.valueOf(error), 0, true);
    }
}
