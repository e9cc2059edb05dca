//! The state as a value of etcd, which takes 1.5 MiB at a time: as JSON while it is short, so that people can read it, else compressed.

use mbal_control::State;
use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

/// Longer ones are compressed: a quarter is left of them, or less.
const PLAIN_BYTES_MAX: usize = 128 << 10;
/// More is no coordinator's state, as in a file.
const BYTES_MAX: usize = 64 << 20;
/// The fastest, 12 ms for 1,000 servers of 64 workers: the sixth takes 100 ms, for a tenth less.
const LEVEL: u8 = 1;
/// A zlib stream begins with it; JSON does not.
const ZLIB: u8 = 0x78;

pub fn encode(state: &State) -> Vec<u8> {
    let text = state.to_json().into_bytes();
    if text.len() <= PLAIN_BYTES_MAX { text } else { compress_to_vec_zlib(&text, LEVEL) }
}

/// The error says what is wrong with it.
pub fn decode(bytes: &[u8]) -> Result<State, String> {
    let text = match bytes.first() {
        Some(&ZLIB) => decompress_to_vec_zlib_with_limit(bytes, BYTES_MAX)
            .map_err(|error| format!("it is compressed, and broken: {error}"))?,
        _ => bytes.to_vec(),
    };
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    State::from_json(&text).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use mbal_control::api::{Incarnation, Registration};
    use mbal_control::{Coordinator, Request, Settings};
    use mbal_model::Instant;

    use super::*;

    /// What etcd takes in one request, unless told otherwise.
    const REQUEST_BYTES_MAX: usize = 3 << 19;

    /// Servers of so many workers, whose ports are in no order, and their map.
    fn state(servers: u64, workers: u64) -> State {
        let settings = Settings { servers_first: servers as usize, ..Settings::default() };
        let mut coordinator = Coordinator::new(settings);
        for server in 0..servers {
            let host = format!("10.{}.{}.1", server / 250, server % 250);
            let port = |at: u64| 10_000 + (server * 7919 + at * 40_503 + server * at * 31) % 50_000;
            let registration = Registration {
                incarnation: Incarnation(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(server + 1)),
                cluster: "mbal".into(),
                client: format!("{host}:11211"),
                link: format!("{host}:{}", port(workers)),
                workers: (0..workers).map(|at| format!("{host}:{}", port(at))).collect(),
                memory_bytes: 64 << 30,
                ..Registration::default()
            };
            let done = coordinator.handle(Instant::ZERO, Request::Register(registration));
            assert!(done.answer.is_ok(), "{:?}", done.answer);
        }
        coordinator.state().clone()
    }

    #[test]
    fn a_short_state_can_be_read_by_people() {
        let state = state(3, 2);
        assert_eq!(encode(&state), state.to_json().into_bytes());
        assert_eq!(decode(&encode(&state)), Ok(state));
    }

    #[test]
    fn a_thousand_servers_of_64_workers_fit_into_one_request() {
        let state = state(1000, 64);
        let (plain, encoded) = (state.to_json().len(), encode(&state));
        println!("{plain} bytes of JSON are {} in etcd", encoded.len());
        assert!(plain > REQUEST_BYTES_MAX, "else nothing has to be compressed");
        assert!(
            encoded.len() < REQUEST_BYTES_MAX * 2 / 3,
            "there is room for moves and longer names"
        );
        assert_eq!(decode(&encoded), Ok(state));
    }

    #[test]
    fn what_is_broken_is_told() {
        let encoded = encode(&state(40, 64));
        assert_eq!(encoded[0], ZLIB);
        assert!(decode(&encoded[..encoded.len() / 2]).is_err_and(|why| why.contains("broken")));
        assert!(decode(b"").is_err_and(|why| why.contains("not a coordinator's state")));
    }
}
