//! What a server says of itself when it starts.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use mbal_reactor::ClientCertificate;
use mbal_worker::Protocol;

use crate::listening::Listening;
use crate::{Config, Login};

/// One line for people, and the same by name for programs.
#[derive(Clone, Debug)]
pub struct Starting {
    workers: String,
    memory: String,
    listens: String,
    protocols: &'static str,
    tls: &'static str,
    login: &'static str,
    /// Where it is, or why there is none.
    control: Result<String, String>,
    /// Where metrics are told.
    pub(crate) metrics: Option<SocketAddr>,
    /// Where the web page is, if it is served.
    pub(crate) page: Option<SocketAddr>,
    /// A line for the shell that stores something and reads it back, with nothing but bash; none where a plain
    /// text client without a password is not served.
    pub example: Option<String>,
}

impl Starting {
    pub(crate) fn of(config: &Config, listening: &Listening) -> Starting {
        let settings = &config.settings;
        let workers = match settings.workers {
            1 => "1 worker".to_owned(),
            workers => format!("{workers} workers"),
        };
        Starting {
            workers,
            memory: format!("{} MiB", settings.memory_bytes >> 20),
            listens: listens(config, listening),
            protocols: match settings.protocol {
                Protocol::Auto => "text and binary",
                Protocol::Text => "text",
                Protocol::Binary => "binary",
            },
            tls: if settings.tls.enabled { "on" } else { "off" },
            login: match config.login {
                Login::NotAsked => "off",
                Login::Sasl(_) => "by SASL",
                Login::Text(_) => "by text",
            },
            control: listening.control_at.clone(),
            metrics: listening.metrics_address(),
            page: listening.http_address(),
            example: example(config, listening),
        }
    }

    /// What programs need not pick out of the line.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let metrics = self.metrics.map_or("off".to_owned(), |address| address.to_string());
        let control = match &self.control {
            Ok(path) => path.clone(),
            Err(why) => format!("none: {why}"),
        };
        let page = self.page.map(|address| ("page", format!("http://{address}/")));
        let mut fields = vec![
            ("listens", self.listens.clone()),
            ("protocols", self.protocols.to_owned()),
            ("tls", self.tls.to_owned()),
            ("login", self.login.to_owned()),
            ("control", control),
            ("metrics", metrics),
        ];
        fields.extend(page);
        fields
    }
}

/// `2 workers, 64 MiB, on 127.0.0.1:11211; text and binary, TLS off, login off, control socket ..., metrics off`
impl fmt::Display for Starting {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Starting { workers, memory, listens, protocols, tls, login, control, .. } = self;
        write!(out, "{workers}, {memory}, on {listens}; {protocols}, ")?;
        write!(out, "TLS {tls}, login {login}, ")?;
        match control {
            Ok(path) => write!(out, "control socket {path}, "),
            Err(why) => write!(out, "no control socket ({why}), "),
        }?;
        match self.metrics {
            Some(address) => write!(out, "metrics on http://{address}/metrics"),
            None => write!(out, "metrics off"),
        }?;
        match self.page {
            Some(address) => write!(out, ", page on http://{address}/"),
            None => Ok(()),
        }
    }
}

fn listens(config: &Config, listening: &Listening) -> String {
    let secured = |tls| match tls {
        _ if !config.settings.tls.enabled => "",
        None => " (no TLS)",
        Some(ClientCertificate::AsConfigured) => "",
        Some(ClientCertificate::NotAsked) => " (no client certificate)",
        Some(ClientCertificate::Required) => " (client certificate)",
    };
    let tcp = listening.addresses.iter().zip(&listening.secured);
    let tcp = tcp.map(|(address, tls)| format!("{address}{}", secured(*tls)));
    let udp = listening.udp_addresses.iter().map(|address| format!("{address}/udp"));
    let unix = config.unix_socket.iter();
    let unix = unix.map(|unix| format!("{}{}", unix.path.display(), secured(None)));
    let mut listens = tcp.chain(udp).chain(unix).collect::<Vec<_>>().join(" ");
    if listens.is_empty() {
        listens.push_str("no address");
    }
    if let Some(base) = config.worker_ports {
        listens.push_str(&format!(", worker ports from {base}"));
    }
    listens
}

fn example(config: &Config, listening: &Listening) -> Option<String> {
    if config.login != Login::NotAsked || config.settings.protocol == Protocol::Binary {
        return None;
    }
    let mut places = listening.addresses.iter().zip(&listening.secured);
    let (address, _) = places.find(|(_, tls)| !(config.settings.tls.enabled && tls.is_some()))?;
    let host = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let requests = r"set k 0 0 5\r\nhello\r\nget k\r\nquit\r\n";
    let port = address.port();
    Some(format!("bash -c 'exec 3<>/dev/tcp/{host}/{port}; printf \"{requests}\" >&3; cat <&3'"))
}
