//! A call of a coordinator's API, for servers and for operators' commands.

use std::path::Path;
use std::time::Duration;

use mbal_control::api::Failure;

/// Who calls a coordinator.
pub struct Caller {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
}

/// Why a call was in vain.
#[derive(Debug)]
pub enum CallFailed {
    /// Nobody answers, or somebody who is ill: later perhaps.
    Silent(String),
    /// By a coordinator that is well: its status, and what it says.
    Refused(u16, String),
}

impl Caller {
    /// `url` is like `http://10.0.0.1:11210`; the error says so. A coordinator that does not answer within `timeout` is silent.
    pub fn new(url: &str, token: Option<String>, timeout: Duration) -> Result<Caller, String> {
        let url = Caller::checked(url)?;
        let agent = ureq::AgentBuilder::new().timeout(timeout).build();
        Ok(Caller { agent, url: url.into(), token })
    }

    /// A coordinator's URL, without the slashes at its end; or why it is none.
    pub fn checked(url: &str) -> Result<&str, String> {
        let expected = || format!("--coordinator {url}: it is like http://10.0.0.1:11210");
        url.starts_with("http://").then(|| url.trim_end_matches('/')).ok_or_else(expected)
    }

    /// The answer's text.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&impl serde::Serialize>,
    ) -> Result<String, CallFailed> {
        let mut request = self.agent.request(method, &format!("{}{path}", self.url));
        if let Some(token) = &self.token {
            request = request.set("Authorization", &format!("Bearer {token}"));
        }
        let answer = match body {
            Some(body) => request.send_json(body),
            None => request.call(),
        };
        match answer {
            Ok(response) => {
                response.into_string().map_err(|error| CallFailed::Silent(error.to_string()))
            }
            Err(ureq::Error::Status(status, response)) => {
                let why = match response.into_json::<Failure>() {
                    Ok(failure) => failure.error,
                    Err(_) => format!("{}: status {status}", self.url),
                };
                Err(match status {
                    408 | 500..=599 => CallFailed::Silent(why),
                    _ => CallFailed::Refused(status, why),
                })
            }
            Err(ureq::Error::Transport(error)) => Err(CallFailed::Silent(error.to_string())),
        }
    }
}

/// The token of a file, without the blanks around it. The error names `flag` and file.
pub fn token_of(flag: &str, path: &Path) -> Result<String, String> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => {
            Err(format!("{flag} {}: there is no token", path.display()))
        }
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(format!("{flag} {}: {error}", path.display())),
    }
}
