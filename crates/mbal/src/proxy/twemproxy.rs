//! twemproxy's configuration, as flags of `mbal proxy`.

use std::fs;
use std::path::Path;

use mbal_proxy::{KeyHash, RingServer};
use yaml_rust2::{Yaml, YamlLoader};

/// One pool of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Pool {
    listen: Place,
    /// By flag, with its value if it has one.
    settings: Vec<(&'static str, Option<String>)>,
    /// As the file has them.
    servers: Vec<String>,
    /// What is another here, or without effect.
    pub notices: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    Tcp { host: String, port: u16 },
    Unix { path: String, mode: Option<String> },
}

/// The pool of that name, or the only one of the file.
pub fn read(path: &Path, pool: Option<&str>) -> Result<Pool, String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|why| format!("{shown}: {why}"))?;
    parse(&text, pool).map_err(|why| format!("{shown}: {why}"))
}

/// The servers of a pool.
pub fn servers(path: &Path, pool: Option<&str>) -> Result<Vec<RingServer>, String> {
    let servers = read(path, pool)?.servers;
    servers.iter().map(|server| server.parse()).collect()
}

impl Pool {
    /// The equal flags of `mbal proxy`; without those of where it listens, if these are said otherwise.
    pub fn flags(&self, listens: bool) -> Vec<String> {
        let mut flags = Vec::new();
        match &self.listen {
            _ if !listens => {}
            Place::Tcp { host, port } => {
                flags.extend(["-l".into(), host.clone(), "-p".into(), port.to_string()]);
            }
            Place::Unix { path, mode } => {
                flags.extend(["-p".into(), "0".into(), "-s".into(), path.clone()]);
                flags.extend(mode.iter().flat_map(|mode| ["-a".into(), mode.clone()]));
            }
        }
        for (flag, value) in &self.settings {
            flags.push((*flag).into());
            flags.extend(value.clone());
        }
        for server in &self.servers {
            flags.extend(["--upstream".into(), server.clone()]);
        }
        flags
    }
}

/// Flags as a shell takes them.
pub fn quoted(flags: &[String]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    let quote = |word: &String| match !word.is_empty() && word.bytes().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    flags.iter().map(quote).collect::<Vec<_>>().join(" ")
}

fn parse(text: &str, wanted: Option<&str>) -> Result<Pool, String> {
    let documents = YamlLoader::load_from_str(text).map_err(|why| why.to_string())?;
    let [Yaml::Hash(pools)] = &documents[..] else {
        return Err("not one YAML document of pools by name".into());
    };
    let names: Vec<&str> = pools.keys().filter_map(Yaml::as_str).collect();
    let name = match (wanted, &names[..]) {
        (Some(name), _) if names.contains(&name) => name,
        (Some(name), _) => {
            return Err(format!("there is no pool {name}; there are: {}", names.join(", ")));
        }
        (None, [only]) => only,
        (None, _) => return Err(format!("--pool says which: {}", names.join(", "))),
    };
    let pool = &pools[&Yaml::String(name.into())];
    of_pool(pool).map_err(|why| format!("{name}: {why}"))
}

fn of_pool(pool: &Yaml) -> Result<Pool, String> {
    let Yaml::Hash(directives) = pool else {
        return Err("a pool has directives by name".into());
    };
    let mut read = Read::default();
    for (name, value) in directives {
        let name = name.as_str().ok_or("a directive has a name")?;
        read.take(name, value).map_err(|why| format!("{name}: {why}"))?;
    }
    read.pool()
}

/// Directives as they are read.
#[derive(Default)]
struct Read {
    listen: Option<Place>,
    settings: Vec<(&'static str, Option<String>)>,
    servers: Vec<String>,
    ejects: bool,
    has_timeout: bool,
    bounds_clients: bool,
    failures: Option<u64>,
    retry_ms: Option<u64>,
    notices: Vec<String>,
}

/// What twemproxy does where its file says nothing.
const FAILURES: u64 = 2;
const RETRY_MS: u64 = 30_000;

impl Read {
    fn take(&mut self, name: &str, value: &Yaml) -> Result<(), String> {
        match name {
            "listen" => self.listen = Some(place(&text(value)?)?),
            "servers" => self.servers = servers_of(value)?,
            "hash" => {
                let hash = text(value)?;
                if hash.parse::<KeyHash>().is_err() {
                    let known = KeyHash::NAMES.map(|(name, _)| name).join(", ");
                    return Err(format!(
                        "{hash} is not known here, keys would be elsewhere; known are {known}"
                    ));
                }
                self.settings.push(("--hash", Some(hash)));
            }
            "distribution" => match &*text(value)? {
                "ketama" => self.settings.push(("--placement", Some("twemproxy".into()))),
                "modula" => self.settings.push(("--placement", Some("modula".into()))),
                "random" => return Err("a key has to have one place here".into()),
                other => return Err(format!("{other} is none of ketama, modula")),
            },
            "timeout" => {
                self.has_timeout = true;
                self.settings.push(("--timeout", Some(format!("{}ms", number(value)?))));
            }
            "auto_eject_hosts" => self.ejects = flag(value)?,
            "server_failure_limit" => self.failures = Some(number(value)?),
            "server_retry_timeout" => self.retry_ms = Some(number(value)?),
            "server_connections" => {
                let connections = number(value)?.to_string();
                self.settings.push(("--server-connections", Some(connections)));
            }
            "client_connections" => {
                let connections = number(value)?;
                self.bounds_clients = connections > 0;
                if self.bounds_clients {
                    self.settings.push(("--connections", Some(connections.to_string())));
                }
            }
            "redis" if !flag(value)? => {}
            "redis" | "redis_auth" | "redis_db" => {
                return Err("the servers have to speak memcached's protocol".into());
            }
            "hash_tag" => {
                return Err("keys are hashed in full here, they would be elsewhere".into());
            }
            "preconnect" if !flag(value)? => {
                self.notices.push("preconnect: false: upstreams are dialed at the start".into());
            }
            "tcpkeepalive" if !flag(value)? => {
                self.notices.push("tcpkeepalive: false: keep-alive is always on".into());
            }
            "preconnect" | "tcpkeepalive" => {}
            "backlog" => {
                let backlog = number(value)?;
                if i64::from(super::BACKLOG) != backlog as i64 {
                    self.notices.push(format!("backlog: {backlog}: it is {}", super::BACKLOG));
                }
            }
            "reuse_port" => self.notices.push("reuse_port: a port has one proxy here".into()),
            _ => return Err("no such directive is known".into()),
        }
        Ok(())
    }

    fn pool(mut self) -> Result<Pool, String> {
        let listen = self.listen.ok_or("it has no listen")?;
        if self.servers.is_empty() {
            return Err("it has no servers".into());
        }
        if self.ejects {
            let failures = self.failures.unwrap_or(FAILURES);
            let retry = self.retry_ms.unwrap_or(RETRY_MS);
            self.settings.push(("--eject", None));
            self.settings.push(("--failures", Some(failures.to_string())));
            self.settings.push(("--retry", Some(format!("{retry}ms"))));
        }
        if !self.has_timeout {
            let notice = "no timeout: twemproxy waits for ever, here an upstream has 400ms";
            self.notices.push(notice.into());
        }
        if !self.bounds_clients {
            let notice = "no client_connections: twemproxy has no bound, here it is that of -c";
            self.notices.push(notice.into());
        }
        let Read { settings, servers, notices, .. } = self;
        Ok(Pool { listen, settings, servers, notices })
    }
}

/// A scalar as it was written.
fn text(value: &Yaml) -> Result<String, String> {
    match value {
        Yaml::String(text) | Yaml::Real(text) => Ok(text.clone()),
        Yaml::Integer(number) => Ok(number.to_string()),
        Yaml::Boolean(flag) => Ok(flag.to_string()),
        _ => Err("it is one word".into()),
    }
}

fn number(value: &Yaml) -> Result<u64, String> {
    let number = value.as_i64().and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| "it is a number".into())
}

/// twemproxy knows no other words for it.
fn flag(value: &Yaml) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "it is true or false".into())
}

/// `HOST:PORT`, or `/PATH` with an access mask behind it.
fn place(text: &str) -> Result<Place, String> {
    if text.starts_with('/') {
        let (path, mode) = match text.split_once(' ') {
            Some((path, mode)) => (path, Some(mode.trim().to_owned())),
            None => (text, None),
        };
        return Ok(Place::Unix { path: path.into(), mode });
    }
    let wrong = || format!("{text:?} is not HOST:PORT");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    Ok(Place::Tcp { host: host.into(), port })
}

fn servers_of(value: &Yaml) -> Result<Vec<String>, String> {
    let listed = value.as_vec().ok_or("it is a list")?;
    let one = |server: &Yaml| {
        let server = text(server)?;
        if server.starts_with('/') {
            return Err(format!("{server}: upstreams are reached by TCP alone"));
        }
        if server.contains(',') {
            return Err(format!("{server}: a name has no comma"));
        }
        server.parse::<RingServer>()?;
        Ok(server)
    };
    listed.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in twemproxy's own conf/nutcracker.yml, in part.
    const FILE: &str = "\
alpha:
  listen: 127.0.0.1:22121
  hash: fnv1a_64
  distribution: ketama
  auto_eject_hosts: true
  redis: false
  server_retry_timeout: 2000
  server_failure_limit: 1
  timeout: 400
  servers:
   - 127.0.0.1:11212:1
   - 127.0.0.1:11213:2 second

beta:
  listen: /tmp/beta.sock 0666
  distribution: modula
  backlog: 512
  preconnect: false
  server_connections: 4
  client_connections: 0
  servers:
   - 10.0.0.1:11211:1
";

    fn flags(text: &str, pool: &str) -> Result<String, String> {
        parse(text, Some(pool)).map(|pool| quoted(&pool.flags(true)))
    }

    #[test]
    fn a_pool_is_a_command_line() {
        let alpha = flags(FILE, "alpha");
        assert_eq!(
            alpha.as_deref(),
            Ok(
                "-l 127.0.0.1 -p 22121 --hash fnv1a_64 --placement twemproxy --timeout 400ms --eject \
                --failures 1 --retry 2000ms --upstream 127.0.0.1:11212:1 --upstream '127.0.0.1:11213:2 second'"
            )
        );
        let beta = parse(FILE, Some("beta")).expect("it is well formed");
        assert_eq!(
            quoted(&beta.flags(true)),
            "-p 0 -s /tmp/beta.sock -a 0666 --placement modula --server-connections 4 --upstream 10.0.0.1:11211:1"
        );
        assert_eq!(beta.notices.len(), 4, "{:?}", beta.notices);
        assert_eq!(beta.flags(false)[0], "--placement");
    }

    #[test]
    fn which_pool_is_asked_where_there_are_several() {
        assert_eq!(parse(FILE, None), Err("--pool says which: alpha, beta".into()));
        let absent = parse(FILE, Some("gamma"));
        assert_eq!(absent, Err("there is no pool gamma; there are: alpha, beta".into()));
        let only = "a:\n  listen: 0.0.0.0:1\n  servers: [\"b:2:1\"]\n";
        assert_eq!(parse(only, None).map(|pool| pool.servers), Ok(vec!["b:2:1".into()]));
    }

    #[test]
    fn what_would_place_keys_elsewhere_is_refused() {
        let with = |line: &str| {
            let servers = "  servers:\n   - b:2:1\n";
            flags(&format!("a:\n  listen: c:1\n  {line}\n{servers}"), "a").unwrap_err()
        };
        for (line, why) in [
            ("hash: crc32", "a: hash: crc32 is not known here, keys would be elsewhere; known are"),
            ("distribution: random", "a: distribution: a key has to have one place here"),
            ("hash_tag: \"{}\"", "a: hash_tag: keys are hashed in full here"),
            ("redis: true", "a: redis: the servers have to speak memcached's protocol"),
            ("redis: maybe", "a: redis: it is true or false"),
            ("timeout: soon", "a: timeout: it is a number"),
            ("no_such: 1", "a: no_such: no such directive is known"),
            ("servers: [\"/tmp/sock:1\"]", ""),
        ] {
            let said = with(line);
            assert!(said.starts_with(why), "{said}");
        }
        for (text, why) in [
            ("a:\n  listen: c:1\n", "a: it has no servers"),
            ("a:\n  servers: [\"b:2:1\"]\n", "a: it has no listen"),
            ("a:\n  listen: c\n", "a: listen: \"c\" is not HOST:PORT"),
            ("a:\n  servers: [\"/x:1\"]\n", "a: servers: /x:1: upstreams are reached by TCP alone"),
            ("a: 1\n", "a: a pool has directives by name"),
            ("- a\n", "not one YAML document of pools by name"),
        ] {
            assert_eq!(flags(text, "a").unwrap_err(), why);
        }
        assert!(parse("a: [", None).is_err());
    }
}
