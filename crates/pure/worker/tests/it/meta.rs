//! The meta commands (protocol.txt, "Meta Commands").

use crate::rig::Rig;

#[track_caller]
fn check(table: &[(&str, &str)]) {
    let mut rig = Rig::new();
    for (input, replies) in table {
        rig.check(input, replies);
    }
}

#[test]
fn a_get_tells_what_its_flags_ask_in_their_order() {
    check(&[
        ("mg k\r\n", "EN\r\n"),
        ("mg k v k O1\r\n", "EN kk O1\r\n"),
        ("mg k v q\r\nmn\r\n", "MN\r\n"),
        ("ms k 2 T90 F7 c k O1\r\nab\r\n", "HD c1 kk O1\r\n"),
        ("mg k\r\n", "HD\r\n"),
        ("mg k s v t f c k O1 l q u\r\n", "VA 2 s2 t90 f7 c1 kk O1 l0\r\nab\r\n"),
        ("mg k h\r\nmg k h\r\n", "HD h1\r\nHD h1\r\n"),
        ("mg k L42 P1\r\n", "HD\r\n"),
        ("mg k t T5\r\nmg k T6 t\r\n", "HD t90\r\nHD t6\r\n"),
        ("mg k T0 t\r\n", "HD t-1\r\n"),
    ]);
}

#[test]
fn fetched_is_told_as_it_was_before() {
    check(&[
        ("ms k 0\r\n\r\n", "HD\r\n"),
        ("mg k h u\r\nmg k h\r\nmg k h\r\n", "HD h0\r\nHD h0\r\nHD h1\r\n"),
    ]);
}

#[test]
fn a_set_has_modes() {
    check(&[
        ("ms k 1 MR\r\nx\r\nms k 1 MA\r\nx\r\nms k 1 MP\r\nx\r\n", "NS\r\nNS\r\nNS\r\n"),
        ("ms k 1 ME\r\nb\r\nms k 1 ME c k\r\nx\r\n", "HD\r\nNS c0 kk\r\n"),
        ("ms k 1 MA\r\nc\r\nms k 1 MP q\r\na\r\n", "HD\r\n"),
        ("mg k v\r\n", "VA 3\r\nabc\r\n"),
        ("ms k 1 C9\r\nx\r\nms j 1 C9\r\nx\r\nms k 1 MA C9\r\nx\r\n", "EX\r\nNF\r\nEX\r\n"),
        ("ms k 1 C3 c\r\nx\r\n", "HD c4\r\n"),
        ("ms k 1 Mx\r\nx\r\n", "CLIENT_ERROR invalid mode for ms M token\r\n"),
        ("ms k 1 MSet\r\nx\r\n", "HD\r\n"),
        ("ms k 1 M\r\nx\r\n", "CLIENT_ERROR invalid mode for ms M token\r\n"),
        ("ms k S1\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("ms k\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (
            "ms k 1 q\r\nabc\r\n",
            "CLIENT_ERROR bad data chunk\r\nCLIENT_ERROR bad command line format\r\n",
        ),
    ]);
}

#[test]
fn a_set_tells_the_size_that_the_item_has_then() {
    check(&[
        ("ms k 2 s MA\r\nab\r\nms k 2 s MA N30\r\nab\r\n", "NS s2\r\nHD s2\r\n"),
        ("ms k 3 MP s N90\r\nxyz\r\nmg k v t\r\n", "HD s5\r\nVA 5 t30\r\nxyzab\r\n"),
        ("ms k 1 ME s\r\nx\r\n", "NS s1\r\n"),
    ]);
}

#[test]
fn a_client_may_choose_the_cas() {
    check(&[
        ("ms k 1 E70 c\r\nx\r\nms k 1 C70 E60 c\r\ny\r\n", "HD c70\r\nHD c60\r\n"),
        ("mg k C60 v\r\nmg k C61 v\r\n", "HD\r\nVA 1\r\ny\r\n"),
        ("mg new N30 E50 c\r\nmg new N30 E51 c\r\n", "HD c50 W\r\nHD c50 Z\r\n"),
        ("md k I E40\r\nmg k c\r\n", "HD\r\nHD c40 X W\r\n"),
        ("md k E0 I\r\ncas k 0 0 1 0\r\nx\r\n", "HD\r\nEXISTS\r\n"),
        ("ma n N0 J8 E30 c\r\nma n E20 c\r\nmg n c\r\n", "HD c30\r\nHD c20\r\nHD c20\r\n"),
        // 10 is longer than 9: a new item, with a cas of the server's.
        ("ma n E10 c\r\nma n C10\r\n", "HD c10\r\nEX\r\n"),
    ]);
}

#[test]
fn a_delete_may_leave_an_empty_item() {
    check(&[
        ("ms k 2 T90 F7 E70\r\nab\r\nmd k x\r\n", "HD\r\nHD\r\n"),
        ("mg k v t f c\r\n", "VA 0 t-1 f0 c70\r\n\r\n"),
        ("md k x T30 F5 E80\r\nmg k t f c\r\n", "HD\r\nHD t30 f5 c80\r\n"),
        ("md k x I E90\r\nmg k v c\r\n", "HD\r\nVA 0 c90 X W\r\n\r\n"),
        ("md none x\r\nmd k x C1\r\n", "NF\r\nEX\r\n"),
    ]);
}

#[test]
fn a_key_in_base64_is_remembered_as_such() {
    check(&[
        ("ms Zm9v 1 b k\r\nv\r\n", "HD kZm9v b\r\n"),
        ("get foo\r\n", "VALUE foo 0 1\r\nv\r\nEND\r\n"),
        ("mg foo k\r\nmg Zm9v b k\r\n", "HD kZm9v b\r\nHD kZm9v b\r\n"),
        ("append foo 0 0 1\r\nw\r\nmg Zm9v k b v\r\n", "STORED\r\nVA 2 kfoo\r\nvw\r\n"),
        ("mg YmFy b k\r\nmd YmFy b k\r\n", "EN kYmFy b\r\nNF kYmFy b\r\n"),
        ("mg Zg b\r\n", "CLIENT_ERROR error decoding key\r\n"),
        ("md Zg b\r\n", "CLIENT_ERROR error decoding key\r\n"),
        ("ma Zg b\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    ]);
}

#[test]
fn one_client_is_told_to_recache_a_stale_item() {
    check(&[
        ("ms k 1 T100\r\n1\r\n", "HD\r\n"),
        ("md k I T30 q\r\n", ""),
        ("mg k v t c\r\nmg k c\r\n", "VA 1 t30 c2 X W\r\n1\r\nHD c2 Z X\r\n"),
        ("ms k 1 I C1 T500 c\r\n2\r\n", "HD c3\r\n"),
        ("mg k v t\r\n", "VA 1 t30 Z X\r\n2\r\n"),
        ("ms k 1 I C3\r\n3\r\nmg k v\r\n", "HD\r\nVA 1\r\n3\r\n"),
    ]);
}

#[test]
fn a_miss_can_make_an_item_and_an_old_one_be_recached() {
    check(&[
        ("mg k s v N30 t\r\n", "VA 0 s0 t30 W\r\n\r\n"),
        ("mg k s v N30 t\r\n", "VA 0 s0 t30 Z\r\n\r\n"),
        ("ms k 1 T20\r\nv\r\n", "HD\r\n"),
        ("mg k R10\r\nmg k R30\r\nmg k R30\r\n", "HD\r\nHD W\r\nHD Z\r\n"),
        ("mg gone N-1\r\nmg gone\r\n", "HD W\r\nEN\r\n"),
    ]);
}

#[test]
fn a_change_that_moves_the_item_or_ends_it_is_the_last() {
    check(&[
        ("ma n N0 O1\r\nmd n I T30\r\n", "HD O1\r\nHD\r\n"),
        ("gats 1000 n\r\n", "VALUE n 0 1 2\r\n0\r\nEND\r\n"),
        ("mg n v T90 t\r\nmg n v t\r\n", "VA 1 t90 X W\r\n0\r\nVA 1 t90 Z X\r\n0\r\n"),
        ("ms k 3\r\nabc\r\nmg k v T-1\r\nmg k\r\n", "HD\r\nVA 3\r\nabc\r\nEN\r\n"),
        ("ms k 3\r\nabc\r\nmd k I T-1\r\nmg k\r\n", "HD\r\nHD\r\nEN\r\n"),
    ]);
}

#[test]
fn arithmetic_counts_and_can_start_from_nothing() {
    check(&[
        ("ma n\r\nma n q\r\n", "NF\r\nNF\r\n"),
        ("ma n N0 J9 v\r\nma n v c t\r\n", "VA 1\r\n9\r\nVA 2 c2 t-1\r\n10\r\n"),
        ("ma n MD D3 v\r\nmg n v\r\n", "VA 1\r\n7\r\nVA 2\r\n7 \r\n"),
        ("ma n M- D9 v\r\nma n M+ q\r\nma n C1\r\n", "VA 1\r\n0\r\nEX\r\n"),
        ("ma n T50 t\r\nma n Mx\r\n", "HD t50\r\nCLIENT_ERROR invalid mode for ma M token\r\n"),
        ("ms s 1\r\nx\r\n", "HD\r\n"),
        ("ma s\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        ("ma n Dx\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    ]);
}

#[test]
fn a_longer_number_does_not_take_over_the_deadline() {
    check(&[
        ("ms n 1\r\n9\r\n", "HD\r\n"),
        ("ma n T50 t\r\nmg n v t\r\n", "HD t50\r\nVA 2 t-1\r\n10\r\n"),
    ]);
}

#[test]
fn flags_are_refused_as_memcached_refuses_them() {
    let bad = "CLIENT_ERROR bad command line format\r\n";
    let too_many = "CLIENT_ERROR options flags are too long\r\n";
    // One word too many; the two behind it are looked at.
    let many = "a ".repeat(19);
    check(&[
        ("mg\r\nms\r\nmd\r\nma\r\nme\r\n", &bad.repeat(5)),
        // What cannot begin a flag goes before all else, as far as memcached reads.
        ("mg k v v !\r\nma k \u{7f}\r\nms k 1 {\r\n", &bad.repeat(3)),
        (&format!("mg k {many} a a !\r\nmg k {many} a !\r\n"), &format!("{too_many}{bad}")),
        ("mg k v v\r\n", "CLIENT_ERROR duplicate flag\r\n"),
        ("mg k S1\r\nmg k 7\r\n", "CLIENT_ERROR invalid flag\r\nCLIENT_ERROR invalid flag\r\n"),
        ("mg k Tx\r\n", "CLIENT_ERROR bad token in command line format\r\n"),
        ("mg k Fx\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("mg k Fx Tx Jx\r\n", "CLIENT_ERROR invalid numeric initial value\r\n"),
        (&format!("mg k {many}\r\nmd k {many}\r\n"), &too_many.repeat(2)),
        (&format!("ms k 1 {many}\r\nv\r\n"), too_many),
    ]);
    let opaque = "O".repeat(32);
    check(&[
        (&format!("mg k {opaque}\r\n"), &format!("EN {opaque}\r\n")),
        (&format!("mg k {opaque}O\r\n"), "CLIENT_ERROR opaque token too long\r\n"),
        (
            &format!("ms k 1 {opaque}O\r\nv\r\nmn\r\n"),
            "CLIENT_ERROR opaque token too long\r\nMN\r\n",
        ),
        (
            &format!("ms k 1\r\nv\r\nmg k T9 {opaque}O\r\nmg k t\r\n"),
            "HD\r\nCLIENT_ERROR opaque token too long\r\nHD t9\r\n",
        ),
    ]);
}

#[test]
fn debugging_tells_size_class_and_size_as_memcached_counts() {
    check(&[
        ("me k\r\n", "EN\r\n"),
        ("ms k 1 F1 T90\r\nv\r\n", "HD\r\n"),
        ("me k\r\n", "ME k exp=90 la=0 cas=1 fetch=no cls=1 size=65\r\n"),
        ("mg k\r\nme aw== b x\r\n", "HD\r\nME k exp=90 la=0 cas=1 fetch=yes cls=1 size=65\r\n"),
    ]);
}
