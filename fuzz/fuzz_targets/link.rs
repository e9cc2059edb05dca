//! Bytes of whoever reaches the port of links: frames, a handshake without the secret, and, from a peer, requests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mbal_fuzz::Rig;
use mbal_link::{
    Accepting, Cluster, Dialing, HANDSHAKE_FRAME_BYTES_MAX, Step, next_frame, push_frame,
};
use mbal_model::ServerId;
use mbal_worker::{Action, Event, Settings, Ticket, Ticketed};

fuzz_target!(|input: &[u8]| {
    let cluster = Cluster::new("fuzz", 2, b"nobody knows it!");
    let mut accepting = Accepting::new(&cluster, 8, &[2; 32], b"");
    let (mut dialing, _) = Dialing::new(&cluster, 0, 1, &[1; 32], b"");
    let mut rig = Rig::new(Settings::default());
    let mut rest = input;
    let mut refused = [false; 2];
    while let Ok(Some((frame, after))) = next_frame(rest, HANDSHAKE_FRAME_BYTES_MAX) {
        let bytes = &rest[..rest.len() - after.len()];
        let mut again = Vec::new();
        push_frame(&mut again, &frame);
        assert_eq!(again, bytes);
        for end in [0, bytes.len() / 2, bytes.len() - 1] {
            let cut = next_frame(&bytes[..end], HANDSHAKE_FRAME_BYTES_MAX);
            assert_eq!(cut, Ok(None), "{end} bytes of it");
        }
        for (side, refused) in refused.iter_mut().enumerate().filter(|(_, refused)| !**refused) {
            let step = if side == 0 { accepting.step(&frame, 0) } else { dialing.step(&frame) };
            match step {
                Step::Send(_) => {}
                Step::Refuse(..) => *refused = true,
                Step::Up(..) => panic!("linked without the secret"),
            }
        }
        // Whatever a peer asks, it gets one answer.
        let (server, ticket) = (ServerId(1), Ticket(7));
        let requests = [Ticketed::new(ticket, frame.payload)];
        let actions = rig.handle(Event::Forwarded { server, requests: &requests });
        let [Action::Answer { server: to, ticket: of, .. }] = &actions.list[..] else {
            panic!("{:?}", actions.list);
        };
        assert_eq!((*to, *of), (server, ticket));
        rest = after;
    }
});
