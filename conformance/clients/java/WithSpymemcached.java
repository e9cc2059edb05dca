import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.BinaryConnectionFactory;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactory;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.DefaultConnectionFactory;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.auth.AuthDescriptor;
import net.spy.memcached.auth.PlainCallbackHandler;

/** What an application does with spymemcached: binary, text, and logged in by SASL. */
public class WithSpymemcached {
    static int counters = 0;

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static ConnectionFactoryBuilder patient(ConnectionFactory kind) {
        return new ConnectionFactoryBuilder(kind).setOpTimeout(60_000);
    }

    static void use(ConnectionFactory kind, String port) throws Exception {
        List<InetSocketAddress> servers = AddrUtil.getAddresses("127.0.0.1:" + System.getenv(port));
        MemcachedClient client = new MemcachedClient(kind, servers);
        try {
            check(client.set("k", 0, "value").get(), "set");
            check("value".equals(client.get("k")), "get");
            List<String> keys = new ArrayList<>(List.of("nosuch"));
            for (int i = 0; i < 100; i++) {
                keys.add("s" + i);
                check(client.set("s" + i, 0, "v" + i).get(), "set of many");
            }
            check(client.getBulk(keys).size() == 100, "multi-get");
            CASValue<Object> found = client.gets("k");
            check(client.cas("k", found.getCas(), "other") == CASResponse.OK, "cas");
            check(client.cas("k", found.getCas(), "late") == CASResponse.EXISTS, "a late cas");
            check(!client.add("k", 0, "x").get(), "add");
            String counter = "n" + ++counters;
            check(client.incr(counter, 5, 8) == 8, "incr creates");
            check(client.incr(counter, 5) == 13, "incr");
            byte[] large = new byte[1_000_000];
            new Random(1).nextBytes(large);
            check(client.set("large", 0, large).get(), "set of a large value");
            check(Arrays.equals((byte[]) client.get("large"), large), "a large value");
            check(client.set("soon", 1, "x").get(), "set of what expires");
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
            while (client.get("soon") != null) {
                check(System.nanoTime() < until, "it should have expired long ago");
                Thread.sleep(200);
            }
            check(client.touch("k", 100).get(), "touch");
            check(client.delete("k").get(), "delete");
            check(client.get("k") == null, "get of what was deleted");
            check(!client.getStats().isEmpty(), "stats");
        } finally {
            client.shutdown(1, TimeUnit.SECONDS);
        }
    }

    public static void main(String[] arguments) throws Exception {
        use(patient(new BinaryConnectionFactory()).setProtocol(ConnectionFactoryBuilder.Protocol.BINARY).build(), "PLAIN");
        use(patient(new DefaultConnectionFactory()).build(), "PLAIN");
        if (System.getenv("SASL").equals("0")) {
            System.out.println("binary, text");
            System.exit(0);
        }
        ConnectionFactory login = patient(new BinaryConnectionFactory())
                .setProtocol(ConnectionFactoryBuilder.Protocol.BINARY)
                .setAuthDescriptor(new AuthDescriptor(
                        new String[] {"PLAIN"}, new PlainCallbackHandler("user", "secret")))
                .build();
        use(login, "SASL");
        System.out.println("binary, text, SASL");
        System.exit(0);
    }
}
