// java Worker.java: does jobs of the type greeting.say. Needs Java 17, and nothing else (use a JSON library in earnest).
import java.net.URI;
import java.net.http.*;
import java.util.regex.*;

class Worker {
    static final HttpClient client = HttpClient.newHttpClient();
    static final Pattern JOB = Pattern.compile("\"id\":\"([^\"]+)\".*?\"name\": ?\"([^\"]*)\".*?\"attempt\":(\\d+)");

    static String call(String path, String body) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(System.getenv("PENSTOCK_URL") + path))
            .header("content-type", "application/json").POST(HttpRequest.BodyPublishers.ofString(body)).build();
        var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() >= 300) throw new java.io.IOException(answer.statusCode() + " " + answer.body());
        return answer.body();
    }

    public static void main(String[] arguments) throws Exception {
        while (true) {
            var polled = call("/v1/jobs/poll", "{\"workerId\": \"java-1\", \"jobTypes\": [\"greeting.say\"], \"waitSeconds\": 20}");
            for (var job = JOB.matcher(polled); job.find(); )
                call("/v1/jobs/" + job.group(1) + "/complete", "{\"workerId\": \"java-1\", \"attempt\": " + job.group(3)
                    + ", \"variables\": {\"greeting\": \"Hello, " + job.group(2) + "\"}}");
        }
    }
}
