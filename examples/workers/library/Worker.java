// java -cp 'libs/*' Worker.java: the same with the contract's library for Java (its jar and Jackson's are in libs).
import com.batnam.rochallor_engine.workflow_sdk_java.client.RestEngineClient;
import com.batnam.rochallor_engine.workflow_sdk_java.handler.HandlerRegistry;
import com.batnam.rochallor_engine.workflow_sdk_java.runner.Runner;
import java.util.Map;

class Worker {
    public static void main(String[] arguments) throws InterruptedException {
        var registry = new HandlerRegistry();
        registry.register("greeting.say", job -> Map.of("greeting", "Hello, " + job.variables().get("name")));
        var engine = new RestEngineClient(System.getenv("PENSTOCK_URL"));
        new Runner("java-1", 64, 500, engine, registry).start();
        Thread.currentThread().join();
    }
}
