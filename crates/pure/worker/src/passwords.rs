//! Who may use the server, as memcached's files have it.

/// The one mechanism; it sends the password as it is, so it wants a network or TLS that is trusted.
pub(crate) const MECHANISMS: &[u8] = b"PLAIN";

/// Says whether a name and a password belong together. The process decides where they are kept.
pub type Authenticator = dyn Fn(&[u8], &[u8]) -> bool + Send + Sync;

/// Names and passwords as memcached's files have them: `user:password`, one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passwords(Vec<(Vec<u8>, Vec<u8>)>);

impl Passwords {
    /// The error is the number of the line that has no colon. With `tokens`, a second colon ends
    /// the password (memcached's SASL file); without it belongs to it (`-Y`).
    pub fn parse(text: &[u8], tokens: bool) -> Result<Passwords, usize> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let line = |(index, line): (usize, &[u8])| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let colon = line.iter().position(|byte| *byte == b':').ok_or(index + 1)?;
            let password = &line[colon + 1..];
            let end = password.iter().position(|byte| tokens && *byte == b':');
            let password = &password[..end.unwrap_or(password.len())];
            Ok((line[..colon].to_vec(), password.to_vec()))
        };
        text.split(|byte| *byte == b'\n')
            .enumerate()
            .map(line)
            .collect::<Result<_, _>>()
            .map(Passwords)
    }

    /// Looks at every line in full, so that the time it takes tells nothing but lengths.
    pub fn admits(&self, user: &[u8], password: &[u8]) -> bool {
        self.0.iter().fold(false, |found, (name, secret)| {
            found | (same(name, user) & same(secret, password))
        })
    }
}

fn same(secret: &[u8], given: &[u8]) -> bool {
    let differing = secret.iter().zip(given).fold(0, |bits, (a, b)| bits | (a ^ b));
    (secret.len() == given.len()) & (std::hint::black_box(differing) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_names_and_passwords() {
        let text = b"ann:secret\r\nbob:a:b\n";
        let passwords = Passwords::parse(text, false).expect("every line has a colon");
        assert!(passwords.admits(b"ann", b"secret"));
        assert!(passwords.admits(b"bob", b"a:b"));
        for (user, password) in [("ann", "secre"), ("ann", "secrets"), ("bob", "secret"), ("", "")]
        {
            assert!(!passwords.admits(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
        let passwords = Passwords::parse(text, true).expect("every line has a colon");
        assert!(passwords.admits(b"bob", b"a"));
        assert_eq!(Passwords::parse(b"ann:secret\n\n", false), Err(2));
    }
}
