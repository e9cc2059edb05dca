//! The flags as a table: a command line, and what it means or why it is refused.

use clap::FromArgMatches;
use mbal_server::{Config, Interface, Listen, Login, Protocol};

use crate::flags::{Checked, Flags};

fn checked(line: &str) -> Result<Checked, String> {
    let arguments = std::iter::once("memcached").chain(line.split_whitespace());
    let matches =
        crate::as_memcached_command().try_get_matches_from(arguments).map_err(|e| e.to_string())?;
    let flags = Flags::from_arg_matches(&matches).expect("clap has checked them");
    flags.check(false, None).map_err(|refused| format!("{} {}", refused.exit_code, refused.reason))
}

fn config(line: &str) -> Config {
    checked(line).unwrap_or_else(|refused| panic!("{line}: {refused}")).config
}

fn listen(line: &str) -> Vec<(String, u16)> {
    let name = |interface| match interface {
        Interface::All => "all".to_string(),
        Interface::Loopback => "loopback".to_string(),
        Interface::Named(name) => name,
    };
    config(line)
        .listen
        .into_iter()
        .map(|Listen { interface, port, .. }| (name(interface), port))
        .collect()
}

#[test]
fn the_same_thing_can_be_said_in_many_ways() {
    let said = config("-p 12345 -m 64 -c 100 -t 3 -I 2m");
    for line in [
        "-p12345 -m64 -c100 -t3 -I2m",
        "--port=12345 --memory-limit=64 --conn-limit=100 --threads=3 --max-item-size=2m",
        "--port 12345 --memory-limit 64 --conn-limit 100 --threads 3 --max-item-size 2097152",
        "--por 12345 --memory-l 64 --conn 100 --thr 3 --max-i 2048k",
        "-p 1 -p 12345 -c 100 -t 3 -I 2M",
    ] {
        assert_eq!(config(line), said, "{line}");
    }
}

#[test]
fn short_flags_combine() {
    assert_eq!(config("-vv").settings.verbosity, 2);
    let combined = config("-MAFvp0");
    let told = &combined.settings;
    assert_eq!(
        (told.evict, told.shutdown_enabled, told.flush_enabled, told.verbosity),
        (false, true, false, 1)
    );
    assert_eq!(combined.listen, []);
}

#[test]
fn listening_places() {
    for (line, places) in [
        ("-t 1", vec![("loopback", 11211)]),
        ("-p -1", vec![("loopback", 0)]),
        ("-p 0", vec![]),
        ("-s /tmp/x", vec![]),
        ("-U 11222", vec![("loopback", 11222)]),
        ("-U 11222 -p 11333", vec![("loopback", 11333)]),
        ("-U 5 -p 11211", vec![("loopback", 11211)]),
        ("-U 5 -p 0", vec![]),
        ("-U 0", vec![("loopback", 11211)]),
        ("-l *", vec![("all", 11211)]),
        ("-l 127.0.0.1", vec![("127.0.0.1", 11211)]),
        ("-l 127.0.0.1:5 -p 7", vec![("127.0.0.1", 5)]),
        ("-l 127.0.0.1 -l ::1 -p 7", vec![("127.0.0.1", 7), ("::1", 7)]),
        ("-l 127.0.0.1,[::1]:8,here -p 7", vec![("127.0.0.1", 7), ("::1", 8), ("here", 7)]),
        ("-l [fe80::1] -p 7", vec![("fe80::1", 7)]),
        ("-l a,a -l a", vec![("a", 11211)]),
        ("-l a:5 -p 0", vec![("a", 5)]),
        ("-Z -l notls:a:5,b", vec![("a", 5), ("b", 11211)]),
        ("-Z -l mtls:a:5,btls:b,mtls:[::1]:6", vec![("a", 5), ("b", 11211), ("::1", 6)]),
    ] {
        let places: Vec<_> = places.into_iter().map(|(name, port)| (name.into(), port)).collect();
        assert_eq!(listen(line), places, "{line}");
    }
}

#[test]
fn places_for_datagrams() {
    for (line, port) in [("-t 1", None), ("-U 0", None), ("-U 5", Some(5)), ("-p 7 -U 5", Some(5))]
    {
        let ports: Vec<u16> = config(line).udp.iter().map(|listen| listen.port).collect();
        assert_eq!(ports, Vec::from_iter(port), "{line}");
    }
    assert_eq!(config("-s /tmp/x -U 5").udp, []);
    assert_eq!(config("-l a:7,b -p 3 -U 5").udp, config("-l a:7,b:5").listen);
}

#[test]
fn refusals_with_memcacheds_exit_codes() {
    for (line, refused) in [
        ("-c 0", "1 Maximum connections must be greater than 0"),
        ("-c -1", "1 Maximum connections must be greater than 0"),
        ("-t 0", "1 Number of threads must be greater than 0"),
        ("-t 5000", "1 Number of threads must be at most 1024"),
        ("--balance maybe", "64 --balance maybe: it is on, off or dry-run"),
        ("--epoch 5ms", "64 --epoch 5ms: seconds, or with ms, from 10ms to 600s"),
        ("--load-max 2", "64 --load-max 2: it is a part of 1, at least 0.05"),
        ("--patience 0", "64 --patience 0: it is 1 to 1000 epochs"),
        ("-R 0", "1 Number of requests per event must be greater than 0"),
        ("-f 1", "1 Factor must be greater than 1"),
        ("-n 0", "1 Chunk size must be greater than 0"),
        ("-o nonsense=1", "1 Illegal suboption \"nonsense=1\""),
        ("-o hash_algorithm=md5", "1 could not parse argument to hash_algorithm"),
        ("-I 1023", "64 Item max size cannot be less than 1024 bytes."),
        (
            "-I 33m",
            "64 Cannot set item size limit higher than 1/2 of memory max.\nWith -I 33m the least -m is 66.",
        ),
        (
            "-m 1",
            "64 Cannot set item size limit higher than 1/2 of memory max.\nWith -I 1m the least -m is 2.",
        ),
        (
            "-m 0 -I 1024",
            "64 Cannot set item size limit higher than 1/2 of memory max.\nWith -I 1024 the least -m is 1.",
        ),
        ("-m 99999999", "64 -m 99999999: it is in MiB, and at most 67108864"),
        ("-m 4096 -I 1025m", "64 Cannot set item size limit higher than a gigabyte."),
        ("-I 1g", "64 -I 1g: not bytes, nor a number with k or m"),
        ("-p 65536", "64 ERROR: Invalid port number 65536."),
        ("-p -2", "64 ERROR: Invalid port number -2."),
        ("-l a:b", "1 Invalid port number: \"b\""),
        ("-l [::1", "1 Invalid IPV6 address: \"[::1\""),
        ("-s x -a 8", "64 -a 8: not an access mask in octal"),
        ("-S -B auto", "64 ERROR: You cannot allow the ASCII protocol while using SASL."),
        (
            "-S -B binary -B ascii",
            "64 ERROR: You cannot allow the ASCII protocol while using SASL.",
        ),
        ("-S -U 5", "64 ERROR: Cannot enable UDP while using binary SASL authentication."),
        ("-S -Y file -U 5", "64 ERROR: Cannot enable UDP while using binary SASL authentication."),
        ("-S -Y file -B ascii", "64 ERROR: You cannot allow the ASCII protocol while using SASL."),
        (
            "-S -Y file -B binary",
            "64 ERROR: You cannot allow the BINARY protocol while using ascii authentication tokens.",
        ),
        (
            "-Y file -B binary",
            "64 ERROR: You cannot allow the BINARY protocol while using ascii authentication tokens.",
        ),
        ("-Y file -U 5", "64 Cannot use UDP with ascii authentication enabled (-U 0 to disable)"),
        ("-Z -o ssl_min_version=9", "1 Unsupported ssl_min_version: 9"),
        (
            "-e /dev/shm/x",
            "64 -e: items are kept in no file here, a restart is cold. Start without it.",
        ),
        ("-o ext_path=/x:1g", "64 This server is not built with extstore support."),
        ("-t 2 --worker-ports 65535", "64 --worker-ports 65535: 2 workers need ports up to 65535"),
        (
            "-t 4 --worker-ports 11210",
            "64 --worker-ports 11210: port 11211 is the common port already",
        ),
        (
            "-s /x --worker-ports 12000",
            "64 --worker-ports 12000: without a TCP port (-s, or -p 0) workers have none of their own",
        ),
        (
            "-p 0 --worker-ports 12000",
            "64 --worker-ports 12000: without a TCP port (-s, or -p 0) workers have none of their own",
        ),
        ("-l a:5,mtls:a:6", "64 -l btls:, mtls: are valid only when SSL is enabled (-Z)"),
        (
            "-Z -l a:5,notls:a:6 --worker-ports 12000",
            "64 --worker-ports 12000: a has ports of several kinds (TLS, client certificates), a worker's own can be but one of these",
        ),
        (
            "-Z -l a:5,notls:*:6 --worker-ports 12000",
            "64 --worker-ports 12000: a has ports of several kinds (TLS, client certificates), a worker's own can be but one of these",
        ),
    ] {
        assert_eq!(checked(line).expect_err(line), refused, "{line}");
    }
    for line in ["-p 0 -l a:5", "-l a:5,notls:a:6", "-Z -l a:5,notls:b:6", "-l a:5,a:6,*:7"] {
        assert!(checked(&format!("{line} --worker-ports 12000")).is_ok(), "{line}");
    }
    let refused = checked("-B http").expect_err("no such protocol");
    assert!(refused.starts_with("64 Invalid value for binding protocol: http\n"), "{refused}");
    for line in ["-z", "--nonsense", "-p", "-p x", "-m abc", "stray"] {
        let refused = checked(line).expect_err(line);
        assert!(refused.starts_with("error: "), "{line}: {refused}");
    }
}

#[test]
fn the_default_of_p_is_in_the_help() {
    let help = crate::as_memcached_command().render_help().to_string();
    assert!(help.contains("TCP port; 0 is none, -1 is any free one [default: 11211]"), "{help}");
}

#[test]
fn sizes_have_memcacheds_units() {
    for (line, memory, item) in [
        ("-t 1", 64 << 20, 1 << 20),
        ("-m 2", 2 << 20, 1 << 20),
        ("-m 1024 -I 512k", 1 << 30, 512 << 10),
        ("-m 2048 -I 1024m", 2 << 30, 1 << 30),
        ("-I 1024", 64 << 20, 1024),
    ] {
        let settings = config(line).settings;
        assert_eq!((settings.memory_bytes, settings.item_bytes_max), (memory, item), "{line}");
    }
}

/// What an image starts with: nobody knows beforehand how large its control group is.
#[test]
fn memory_may_follow_from_what_there_is() {
    let there_is = mbal_server::memory_bytes().expect("the system tells");
    let settings = config("-m auto").settings;
    assert_eq!(settings.memory_bytes, ((there_is >> 20) * 3 / 4) << 20);
    assert_eq!(config("-m auto -m 64").settings.memory_bytes, 64 << 20, "the last one wins");
    let refused = checked("-m automatic").expect_err("it is no number");
    assert!(refused.contains("automatic"), "{refused}");
}

/// The packaged unit names both, so that a line in a settings file makes a cluster's server of one alone.
#[test]
fn a_server_alone_may_have_a_token_and_a_secret() {
    assert!(config("--coordinator-token none --cluster-secret none").cluster.is_none());
}

#[test]
fn flags_without_effect_say_so() {
    for (line, notices) in [
        ("-U 0", 0),
        ("-X -W -r -k", 0),
        ("-o relaxed_privileges,modern -u root", 0),
        ("-o maxconns_fast -o no_maxconns_fast", 0),
        ("-U 5", 0),
        ("-C -L -f 1.5 -n 100 -D : -N 2", 5),
        ("-o ssl_kernel_tls,sock_cookie_id=5,ext_threads=2", 3),
        ("-o slab_reassign,lru_crawler,hashpower=20", 2),
        ("-B binary", 0),
        ("-B ascii", 0),
    ] {
        assert_eq!(checked(line).expect(line).notices.len(), notices, "{line}");
    }
}

/// Words behind the flags and options of memcached's help that want one.
fn word(name: &str) -> &'static str {
    match name {
        "s" | "P" | "Y" | "ssl_chain_cert" | "ssl_key" | "ssl_ca_cert" => "/x",
        "l" => "::1",
        "u" => "nobody",
        "a" => "700",
        "f" => "1.5",
        "B" => "auto",
        "D" => "/",
        "I" => "2m",
        "o" => "modern",
        "hash_algorithm" => "murmur3",
        "ssl_keyformat" => "PEM",
        "ssl_ciphers" => "HIGH",
        "p" | "U" | "m" | "c" | "n" | "t" | "R" | "b" | "N" => "64",
        _ => "1",
    }
}

/// The one of this machine, if it has one.
#[test]
fn whatever_memcacheds_help_names_is_accepted() {
    let Ok(help) = std::process::Command::new("memcached").arg("-h").output() else {
        return eprintln!("SKIPPED: this needs memcached's help");
    };
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let is_name = |letter: char| letter.is_ascii_lowercase() || matches!(letter, '_' | '-');
    let mut accepted = 0;
    for line in help.lines() {
        let name = |from: &str| from.chars().take_while(|one| is_name(*one)).collect::<String>();
        let option =
            line.strip_prefix("   - ").filter(|l| l.starts_with(is_name) && l.contains(':'));
        let lines = if let Some(option) = option {
            let option = name(option);
            vec![format!("-o {option}={}", word(&option)), format!("-o {option}")]
        } else if let Some(flag) = line.strip_prefix('-').filter(|l| !l.starts_with('-')) {
            let short = &flag[..1];
            let long = flag.split_once("--").map(|(_, long)| format!("--{}", name(long)));
            let forms = std::iter::once(format!("-{short}")).chain(long);
            forms.flat_map(|form| [format!("{form} {}", word(short)), form]).collect()
        } else {
            continue;
        };
        // A switch takes no word, and what takes one may not go without. A memcached without a proxy refuses one, too.
        let others = ["-h", "-V", "-i", "-e", "-S", "-o ext_path"];
        let is_other = |line: &String| others.contains(&&**line) || line.starts_with("-o proxy_");
        if lines.iter().any(is_other) {
            continue;
        }
        let refusals: Vec<_> = lines.iter().filter_map(|line| checked(line).err()).collect();
        assert!(refusals.len() < lines.len(), "{line}: {refusals:?}");
        accepted += 1;
    }
    assert!(accepted > 60, "{accepted} of memcached's help: {help}");
}

#[test]
fn who_logs_in_speaks_one_protocol() {
    assert_eq!((config("-t 1").settings.protocol, config("-B binary").settings.protocol), {
        (Protocol::Auto, Protocol::Binary)
    });
    for line in ["-Y /etc/users", "-S -Y /etc/users", "-Y /etc/users -S"] {
        let config = config(line);
        let by_text = (Protocol::Text, Login::Text("/etc/users".into()));
        assert_eq!((config.settings.protocol, config.login), by_text, "{line}");
    }
}

#[test]
fn no_modern_is_what_memcached_did_by_itself_once() {
    let settings = config("-o no_modern").settings;
    assert!(!settings.crawler_enabled && !settings.maxconns_fast);
    let echoed = &settings.echoed;
    assert!(!echoed.slab_reassign && !echoed.lru_maintainer);
    assert_eq!((echoed.slab_automove, echoed.slab_chunk_max), (0, 1024));
    assert!(config("-o no_modern,lru_crawler").settings.crawler_enabled);
}

#[test]
fn a_connection_too_many_may_wait() {
    assert!(config("-c 5").settings.maxconns_fast);
    assert!(!config("-o no_maxconns_fast").settings.maxconns_fast);
    assert!(config("-o no_maxconns_fast,maxconns_fast").settings.maxconns_fast);
}
