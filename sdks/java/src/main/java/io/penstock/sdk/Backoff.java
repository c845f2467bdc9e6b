package io.penstock.sdk;

import java.util.concurrent.ThreadLocalRandom;

/** Pauses that double, each shortened by a random part of up to half. Milliseconds. */
final class Backoff {
    static final long MAX_PAUSE_MS = 5000;
    private static final long FIRST_MS = 100;
    private final long max;
    private long next = FIRST_MS;

    Backoff(long max) {
        this.max = max;
    }

    long pause(PenstockException error) {
        var random = ThreadLocalRandom.current();
        long pause = (long) (next * (0.5 + random.nextDouble() / 2));
        next = Math.min(next * 2, max);
        long asked = error == null ? 0 : Math.min(error.retryAfter.toMillis(), 60_000);
        return asked == 0 ? pause : Math.max(pause, (long) (asked * (1 + random.nextDouble() / 4)));
    }

    void reset() {
        next = FIRST_MS;
    }
}
