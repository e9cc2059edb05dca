//! Reads through `mbal proxy`, by the kernel's data plane and by its sockets, and through twemproxy: the rate with less than 1% loss,
//! and latency by size of the value, as CSV (docs/results/xdp.md). `end_to_end MBAL` with a build that has `--xdp`.

#[path = "../tests/wire/net.rs"]
#[allow(dead_code)]
mod net;

use std::fs;
use std::process::{Child, Command, Stdio};

use net::*;

const ROUNDS: usize = 3;
const SECONDS: &str = "1";
/// Requests per second, one after the other until more than 1% is lost.
const RATES: [u32; 9] = [5_000, 10_000, 15_000, 20_000, 30_000, 40_000, 60_000, 80_000, 100_000];
const LIGHT: u32 = 2_000;
const VALUES: [usize; 6] = [4, 32, 128, 512, 1_024, 1_400];

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Kernel,
    Sockets,
    Twemproxy,
}

impl Way {
    const ALL: [(Way, &str); 3] = [
        (Way::Kernel, "mbal proxy --xdp, UDP"),
        (Way::Sockets, "mbal proxy, UDP"),
        (Way::Twemproxy, "twemproxy, TCP"),
    ];

    fn start(self, net: &Net, mbal: &str) -> Child {
        let (ip, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
        let upstreams = format!("{},{}", server(0), server(1));
        let mut command = net.command("proxy", mbal);
        command.args(["proxy", "-l", &ip, "-p", &port, "-U", &port, "--upstream", &upstreams]);
        if self == Way::Kernel {
            command.args(["--xdp", "eth0", "--direct-return"]);
        }
        if self == Way::Twemproxy {
            command = net.twemproxy(SERVICE, "fnv1a_64");
        }
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }
}

/// What came of one load.
struct Figures {
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    /// Of what was asked.
    lost: f64,
    lag_p99_us: f64,
}

/// One load from the client's host.
fn load(net: &Net, mbal: &str, way: Way, bytes: usize, rate: u32, flags: &[&str]) -> Figures {
    let path = std::env::temp_dir().join(format!("end-to-end-{}.csv", std::process::id()));
    let _ = fs::remove_file(&path);
    let mut command: Command = net.command("client", mbal);
    command.args(["bench", &SERVICE.to_string(), "--protocol", "text", "--keys", "1000"]);
    command.args(["--key-bytes", "31", "--value-bytes", &bytes.to_string()]);
    command.args(["--duration", SECONDS, "--warmup", "0.2", "--connections", "16"]);
    command.args(["--rate", &rate.to_string()]).args(flags).arg("--csv").arg(&path);
    if way != Way::Twemproxy && !flags.contains(&"--prefill") {
        command.arg("--udp");
    }
    let output = command.output().unwrap();
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let (names, row) = text.split_once('\n').unwrap();
    let fields: Vec<&str> = row.split(',').collect();
    let number = |name: &str| -> f64 {
        let at = names.split(',').position(|one| one == name).unwrap();
        fields[at].parse().unwrap_or(0.0)
    };
    let (lost, keys) = (number("lost") + number("unsent"), number("keys"));
    Figures {
        rate: number("requests_per_second"),
        p50_us: number("p50_us"),
        p99_us: number("p99_us"),
        lost: lost / (lost + keys),
        lag_p99_us: number("lag_p99_us"),
    }
}

fn main() {
    let mbal = &std::env::args().nth(1).expect("the path of mbal");
    let net = Net::new().expect("namespaces and memcached");
    let _bridge = net.nothing_at_the_bridge();
    println!(
        "figure,way,value bytes,round,offered,per second,p50 us,p99 us,lost,generator late us"
    );
    for round in 0..ROUNDS {
        for (way, name) in Way::ALL {
            let mut proxy = way.start(&net, mbal);
            net.at("client", || drop(connect(SERVICE)));
            let row = |figure: &str, bytes: usize, offered: u32, one: &Figures| {
                println!(
                    "{figure},\"{name}\",{bytes},{round},{offered},{:.0},{:.1},{:.1},{:.4},{:.0}",
                    one.rate, one.p50_us, one.p99_us, one.lost, one.lag_p99_us
                );
            };
            for bytes in VALUES {
                load(&net, mbal, way, bytes, 50_000, &["--prefill"]);
                let one = load(&net, mbal, way, bytes, LIGHT, &[]);
                row("latency", bytes, LIGHT, &one);
            }
            load(&net, mbal, way, 32, 50_000, &["--prefill"]);
            for rate in RATES {
                let one = load(&net, mbal, way, 32, rate, &[]);
                row("rate", 32, rate, &one);
                // TCP loses nothing: it is late.
                if one.lost >= 0.01 || one.rate < 0.95 * f64::from(rate) {
                    break;
                }
            }
            proxy.kill().and_then(|()| proxy.wait()).unwrap();
        }
    }
}
