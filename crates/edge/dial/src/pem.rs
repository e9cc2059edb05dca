//! Certificates and keys in PEM files, under all the labels by which OpenSSL takes them.

use std::fs;
use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What is said beside an error about a key that is read, but cannot be used.
pub const USABLE_KEYS: &str = "usable are RSA keys of 2048 bits or more, ECDSA keys on P-256 or P-384 with their \
                               public half (`openssl pkey -in KEY -out NEW` adds it), and Ed25519 keys";

/// All certificates of the file that are to be trusted, one or more, in its order. Everything else in it is passed over: a
/// `TRUSTED CERTIFICATE` too, whose remarks may say what it is not to be trusted for.
pub fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    certificates(file, &["CERTIFICATE", "X509 CERTIFICATE"])
}

/// All certificates of the file that is to be shown to others, one or more, in its order.
pub fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    certificates(file, &["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"])
}

fn certificates(file: &Path, labels: &[&str]) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut certificates = Vec::new();
    for block in blocks(file)? {
        if labels.contains(&&*block.label) {
            let mut der = block.decode()?;
            // What a certificate is trusted for follows it in a TRUSTED one.
            der.truncate(element_bytes(&der).unwrap_or(der.len()));
            certificates.push(CertificateDer::from(der));
        }
    }
    if certificates.is_empty() { Err("no certificate in it".into()) } else { Ok(certificates) }
}

/// The first private key of the file. What it says, not its label, tells what kind of key it is.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let blocks = blocks(file)?;
    let block = blocks.iter().find(|block| block.label.ends_with("PRIVATE KEY"));
    let block = block.ok_or("no private key in it")?;
    if block.is_encrypted() {
        return Err("it is encrypted, and nobody is here to type the passphrase: \
                    `openssl pkey -in KEY -out NEW` writes it without"
            .into());
    }
    PrivateKeyDer::try_from(block.decode()?).map_err(str::to_owned)
}

/// The lines from `-----BEGIN LABEL-----` to `-----END LABEL-----`, without these two.
struct Block {
    label: String,
    lines: Vec<String>,
}

fn blocks(file: &Path) -> Result<Vec<Block>, String> {
    let bytes = fs::read(file).map_err(|error| error.to_string())?;
    // What is no UTF-8 stands in remarks between blocks.
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.trim_start_matches('\u{feff}').lines().map(str::trim_end);
    let mut blocks = Vec::new();
    while let Some(line) = lines.next() {
        let label = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----"));
        let Some(label) = label else { continue };
        let (end, mut block) = (format!("-----END {label}-----"), Vec::new());
        loop {
            let line = lines.next().ok_or_else(|| format!("{end} is missing"))?;
            if line == end {
                break;
            }
            block.push(line.to_owned());
        }
        blocks.push(Block { label: label.to_owned(), lines: block });
    }
    Ok(blocks)
}

impl Block {
    /// By either way: PKCS#8's own, or OpenSSL's older headers.
    fn is_encrypted(&self) -> bool {
        let is_header =
            |line: &String| line.starts_with("Proc-Type:") && line.ends_with("ENCRYPTED");
        self.label == "ENCRYPTED PRIVATE KEY" || self.lines.iter().any(is_header)
    }

    fn decode(&self) -> Result<Vec<u8>, String> {
        let body = self.lines.join("\n");
        let block = format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        let decoded = CertificateDer::from_pem_slice(block.as_bytes());
        decoded.map(|der| der.to_vec()).map_err(|error| format!("{}: {error}", self.label))
    }
}

/// How long the first element of some DER is, as its head says; `None` if that makes no sense.
fn element_bytes(der: &[u8]) -> Option<usize> {
    let length = usize::from(*der.get(1)?);
    match length.checked_sub(0x80) {
        None => Some(2 + length),
        Some(digits) if digits > 4 => None,
        Some(digits) => {
            let length =
                der.get(2..2 + digits)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            Some(2 + digits + length)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_as_long_as_its_head_says() {
        for (der, bytes) in [
            (&[0x30, 0x00][..], Some(2)),
            (&[0x30, 0x7f, 1, 2, 3], Some(0x81)),
            (&[0x30, 0x81, 0x80], Some(0x83)),
            (&[0x30, 0x82, 0x01, 0x02, 0xff], Some(4 + 0x102)),
            (&[0x30, 0x82, 0x01], None),
            (&[0x30, 0x89, 1, 1, 1, 1, 1, 1, 1, 1, 1], None),
            (&[0x30], None),
            (&[], None),
        ] {
            assert_eq!(element_bytes(der), bytes, "{der:x?}");
        }
    }
}
