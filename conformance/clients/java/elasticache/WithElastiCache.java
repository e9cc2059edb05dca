import java.net.InetSocketAddress;
import java.util.List;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.ClientMode;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;

/** Amazon's client finds all servers of a cluster by one of them: in the text protocol, and in the binary one. */
public class WithElastiCache {
    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void use(Protocol protocol) throws Exception {
        ConnectionFactoryBuilder factory = new ConnectionFactoryBuilder()
                .setClientMode(ClientMode.Dynamic).setProtocol(protocol).setOpTimeout(60_000);
        InetSocketAddress one = new InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("CLUSTER").split(" ")[0]));
        MemcachedClient client = new MemcachedClient(factory.build(), List.of(one));
        try {
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
            while (client.getAvailableNodeEndPoints().size() < 3) {
                check(System.nanoTime() < until, protocol + ": found " + client.getAllNodeEndPoints());
                Thread.sleep(50);
            }
            for (String port : System.getenv("CLUSTER").split(" ")) {
                check(client.getAllNodeEndPoints().stream().anyMatch(node -> node.getPort() == Integer.parseInt(port)), port);
            }
            for (int i = 0; i < 100; i++) {
                check(client.set("e" + i, 0, "v" + i).get(), "set");
            }
            for (int i = 0; i < 100; i++) {
                check(("v" + i).equals(client.get("e" + i)), "get");
            }
        } finally {
            client.shutdown(1, TimeUnit.SECONDS);
        }
    }

    public static void main(String[] arguments) throws Exception {
        use(Protocol.TEXT);
        use(Protocol.BINARY);
        System.out.println("three servers found by one, text and binary");
        System.exit(0);
    }
}
