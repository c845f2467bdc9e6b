// Posts bodies the way every Java worker does: the default client prefers HTTP/2 and so offers h2c on each request.
// Usage: java Offers.java http://host:port   Prints one line per answer: version, status, body length, echoed hash.

import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;

public class Offers {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        int[] sizes = {0, 1, 200, 20_000, 1_000_000, 200};
        for (int n = 0; n < sizes.length; n++) {
            byte[] body = new byte[sizes[n]];
            Arrays.fill(body, (byte) ('a' + n));
            send(client, arguments[0] + "/counted/" + n, BodyPublishers.ofByteArray(body));
            send(client, arguments[0] + "/chunked/" + n, BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body)));
        }
        HttpRequest get = HttpRequest.newBuilder(URI.create(arguments[0] + "/get")).timeout(Duration.ofSeconds(10)).build();
        report(client.send(get, BodyHandlers.ofString(StandardCharsets.UTF_8)));
    }

    private static void send(HttpClient client, String uri, BodyPublisher body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(uri))
                .timeout(Duration.ofSeconds(10))
                .header("Content-Type", "application/json")
                .POST(body)
                .build();
        report(client.send(request, BodyHandlers.ofString(StandardCharsets.UTF_8)));
    }

    private static void report(HttpResponse<String> answer) {
        System.out.println(answer.version() + " " + answer.statusCode() + " " + answer.body());
    }
}
