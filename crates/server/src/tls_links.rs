//! TLS of links between servers: the certificate of `-Z`, TLS 1.3 alone, and any certificate at the other end. Both ends
//! prove by the cluster's secret, over this session's own keys, who they are.

use std::sync::Arc;

use mbal_dial::AnyCertificate;
use mbal_worker::TlsSettings;
use rustls::crypto::ring;
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, ServerConfig};

use crate::tls::certified;

pub(crate) fn configs(
    settings: &TlsSettings,
) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), String> {
    let provider = Arc::new(ring::default_provider());
    let failed = |why: Error| format!("TLS of links: {why}");
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .with_no_client_auth()
        .with_cert_resolver(certified(settings, &provider)?);
    // Links are few, and last: there is nothing to take up again.
    server.send_tls13_tickets = 0;
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    Ok((Arc::new(server), Arc::new(client)))
}
