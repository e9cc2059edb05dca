//! The scale of a StatefulSet, by the API of Kubernetes: `PATCH .../statefulsets/NAME/scale`.
//!
//! A pod finds its API server by its environment, a token and the API server's authority in files that every pod has. The token is
//! read anew for each call, since Kubernetes renews it.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// What Kubernetes mounts into every pod.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const WITHIN: Duration = Duration::from_secs(30);

/// Whose replicas are set.
pub struct StatefulSet {
    url: String,
    agent: ureq::Agent,
    token: Option<PathBuf>,
}

impl fmt::Debug for StatefulSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StatefulSet").field("url", &self.url).finish_non_exhaustive()
    }
}

impl StatefulSet {
    /// `NAMESPACE/NAME`, by the API server of the cluster in which this process is.
    pub fn in_pod(name: &str) -> Result<StatefulSet, String> {
        let of = |variable: &str| {
            std::env::var(variable).map_err(|_| format!("no ${variable}: this is no pod"))
        };
        let (host, port) = (of("KUBERNETES_SERVICE_HOST")?, of("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        StatefulSet::at(&format!("https://{host}:{port}"), name, Some(Path::new(SERVICE_ACCOUNT)))
    }

    /// By the API server at that URL. `account` is a folder with `token`, and `ca.crt` for https.
    pub fn at(server: &str, name: &str, account: Option<&Path>) -> Result<StatefulSet, String> {
        let expected = || format!("{name}: a StatefulSet is NAMESPACE/NAME");
        let is_name = |text: &str| {
            let is_fit = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
            };
            !text.is_empty() && text.bytes().all(is_fit)
        };
        let (namespace, set) = name.split_once('/').ok_or_else(expected)?;
        if !is_name(namespace) || !is_name(set) {
            return Err(expected());
        }
        let mut builder = ureq::AgentBuilder::new().timeout(WITHIN);
        if server.starts_with("https:") {
            let folder = account.ok_or("https needs an authority: ca.crt")?;
            builder = builder.tls_connector(Arc::new(Tls::trusting(&folder.join("ca.crt"))?));
        }
        Ok(StatefulSet {
            url: format!("{server}/apis/apps/v1/namespaces/{namespace}/statefulsets/{set}/scale"),
            agent: builder.build(),
            token: account.map(|folder| folder.join("token")),
        })
    }

    /// So many pods there are to be. Those of the highest numbers are stopped.
    pub fn scale(&self, replicas: usize) -> Result<(), String> {
        let mut request = self.agent.request("PATCH", &self.url);
        if let Some(path) = &self.token {
            let token = std::fs::read_to_string(path);
            let token = token.map_err(|error| format!("{}: {error}", path.display()))?;
            request = request.set("Authorization", &format!("Bearer {}", token.trim()));
        }
        let body = serde_json::json!({ "spec": { "replicas": replicas } }).to_string();
        let request = request.set("Content-Type", "application/merge-patch+json");
        match request.send_string(&body) {
            Ok(_) => Ok(()),
            Err(ureq::Error::Status(status, response)) => {
                let said: serde_json::Value = response.into_json().unwrap_or_default();
                let why = said["message"].as_str().unwrap_or("no reason given").to_owned();
                Err(format!("{}: {status}: {why}", self.url))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// TLS for [`ureq`], which has none of its own here.
struct Tls(Arc<ClientConfig>);

impl Tls {
    fn trusting(authority: &Path) -> Result<Tls, String> {
        let failed = |why: String| format!("{}: {why}", authority.display());
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_file_iter(authority);
        for certificate in certificates.map_err(|error| failed(error.to_string()))? {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            roots.add(certificate).map_err(|error| failed(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(failed("no certificate".into()));
        }
        let provider = rustls::crypto::ring::default_provider().into();
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        Ok(Tls(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
    }
}

#[derive(Debug)]
struct Secured(StreamOwned<ClientConnection, Box<dyn ureq::ReadWrite>>);

impl Read for Secured {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Secured {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        self.0.write(from)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl ureq::ReadWrite for Secured {
    fn socket(&self) -> Option<&TcpStream> {
        self.0.sock.socket()
    }
}

impl ureq::TlsConnector for Tls {
    fn connect(
        &self,
        host: &str,
        stream: Box<dyn ureq::ReadWrite>,
    ) -> Result<Box<dyn ureq::ReadWrite>, ureq::Error> {
        let failed = |error: String| std::io::Error::other(error);
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(|error| failed(error.to_string()))?;
        let tls = ClientConnection::new(Arc::clone(&self.0), name);
        let tls = tls.map_err(|error| failed(error.to_string()))?;
        Ok(Box::new(Secured(StreamOwned::new(tls, stream))))
    }
}
