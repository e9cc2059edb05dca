//! A connection, text or binary: how its input is cut on the way changes nothing. The first bytes
//! choose settings and the cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mbal_fuzz::Rig;
use mbal_worker::{Protocol, Settings};

/// Longer lines are taken or not by how they arrive, as in memcached.
const INPUT_BYTES_MAX: usize = 2000;

fuzz_target!(|bytes: &[u8]| {
    let Some(([choice, cut, step], input)) = bytes.split_first_chunk::<3>() else { return };
    let input = &input[..input.len().min(INPUT_BYTES_MAX)];
    let settings = Settings {
        requests_per_event: [512, 1, 2, 3][usize::from(choice & 3)],
        sasl: choice & 12 == 4,
        auth_file: (choice & 12 == 8).then(|| "file".to_owned()),
        protocol: match choice & 12 {
            4 => Protocol::Binary,
            8 => Protocol::Text,
            _ => Protocol::Auto,
        },
        evict: choice & 16 == 0,
        flush_enabled: choice & 32 == 0,
        ..Settings::default()
    };
    let played = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut rig = Rig::new(settings.clone());
        let mut replies = Vec::new();
        for piece in pieces {
            rig.send(piece, &mut replies);
        }
        (replies, rig.closed)
    };
    let whole = played(&mut std::iter::once(input));
    let cut = usize::from(*cut) % (input.len() + 1);
    let (first, second) = input.split_at(cut);
    let cut = played(&mut [first, second].into_iter().filter(|piece| !piece.is_empty()));
    let stepped = played(&mut input.chunks(1 + usize::from(step & 7)));
    // Statistics tell how much has arrived, and how often; a dump or a watch must not be pipelined.
    let (replies, _) = &whole;
    let has = |bytes: &[u8], word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
    let tells = [&b"STAT "[..], b"\x81\x10"].iter().any(|word| has(replies, word));
    let asks = [&b"watch"[..], b"lru_crawler", b"stats"].iter().any(|word| has(input, word));
    if tells || asks {
        return;
    }
    assert_eq!(whole, cut, "in two pieces");
    assert_eq!(whole, stepped, "piece by piece");
});
