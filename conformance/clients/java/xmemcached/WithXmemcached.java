import java.net.InetSocketAddress;
import java.util.concurrent.TimeUnit;
import net.rubyeye.xmemcached.aws.AWSElasticCacheClient;

/** xmemcached's client for ElastiCache finds all servers of a cluster by one of them. */
public class WithXmemcached {
    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String[] ports = System.getenv("CLUSTER").split(" ");
        AWSElasticCacheClient client = new AWSElasticCacheClient(new InetSocketAddress("127.0.0.1", Integer.parseInt(ports[0])));
        client.setOpTimeout(60_000);
        check(client.getCurrentConfig().getVersion() == 7, "version of the map: " + client.getCurrentConfig().getVersion());
        check(client.getCurrentConfig().getNodeList().size() == 3, "found " + client.getCurrentConfig().getNodeList());
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (client.getAvailableServers().size() < 3) {
            check(System.nanoTime() < until, "connected to " + client.getAvailableServers());
            Thread.sleep(50);
        }
        for (int i = 0; i < 100; i++) {
            check(client.set("x" + i, 0, "v" + i), "set");
            check(("v" + i).equals(client.get("x" + i)), "get");
        }
        client.shutdown();
        System.out.println("three servers found by one, version 7");
        System.exit(0);
    }
}
