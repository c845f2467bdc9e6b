package io.penstock.examples;

import io.penstock.sdk.Client;
import io.penstock.sdk.NonRetryableException;
import io.penstock.sdk.RetryException;
import io.penstock.sdk.StartRequest;
import io.penstock.sdk.Worker;
import io.penstock.sdk.WorkerOptions;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/**
 * The worker of examples/order-fulfilment.json. With --try it uploads the workflow, runs three orders through it and shows
 * them; without, it only works, until Ctrl-C. PENSTOCK_URL says where the engine is.
 */
public final class Order {
    private static final String URL = System.getenv().getOrDefault("PENSTOCK_URL", "http://127.0.0.1:8080");

    /** The part of the variables that these handlers read. */
    record Variables(String orderId, int amount, List<String> items) {}

    private Order() {}

    private static Map<String, Object> validate(Variables order) throws NonRetryableException {
        if (order.amount() < 0) // what can never be fulfilled: retries would not help
            throw new NonRetryableException("order " + order.orderId() + " has a negative amount: " + order.amount());
        return Map.of("validated", true);
    }

    public static void main(String[] arguments) throws Exception {
        var worker = new Worker(URL, new WorkerOptions().concurrency(32))
            .handle("order.validate", Variables.class, (job, order) -> validate(order))
            .handle("stock.reserve", 8, null, job -> Map.of("reservation", "r-" + job.variables().get("orderId")))
            .handle("payment.charge", 0, Duration.ofSeconds(30), job -> {
                if (job.variables().get("items").equals(List.of("flaky")) && job.attempt() == 1)
                    throw new RetryException("the payment service asks to come back", Duration.ofMillis(100));
                // The payment service charges once for a key, however often the job comes.
                return Map.of("paymentId", UUID.nameUUIDFromBytes(job.idempotencyKey().getBytes()).toString());
            })
            .handle("parcel.ship", Variables.class, (job, order) -> Map.of("trackingNumber", "PS-" + order.orderId()))
            .handle("customer.notify", job -> null);
        if (arguments.length > 0 && arguments[0].equals("--try")) new Thread(() -> tryIt(worker)).start();
        worker.runUntilSignal();
    }

    private static void tryIt(Worker worker) {
        try {
            var client = new Client(URL);
            client.uploadDefinition(Files.readString(Path.of("../../examples/order-fulfilment.json"))).join();
            for (var order : List.of(new Variables("A-1", 25, List.of("book")), new Variables("A-2", 40, List.of("flaky")),
                    new Variables("A-3", -1, List.of()))) {
                var made = client.start(new StartRequest("order-fulfilment").variables(order).waitSeconds(60)).join();
                System.out.println(order.orderId() + " " + made.status() + " " + (made.failureReason() == null ? "" : made.failureReason()));
            }
        } catch (Exception error) {
            error.printStackTrace();
        } finally {
            worker.stop();
        }
    }
}
