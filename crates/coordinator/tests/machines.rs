//! Commands that start and stop servers. In a process of its own: what it forks holds its files' locks for a moment.

use mbal_coordinator::{Leaver, Machines};

#[test]
fn commands_are_told_how_many_servers_there_are_to_be_and_which_one_leaves() {
    let file = std::env::temp_dir().join(format!("mbal-machines-{}", std::process::id()));
    let file_name = file.display();
    let say = |what: &str| {
        format!("echo {what} $MBAL_CLUSTER $MBAL_COUNT $MBAL_SERVER $MBAL_SERVER_ID >>{file_name}")
    };
    let machines = Machines::Commands { start: say("start"), stop: say("stop") };
    let leaver = Leaver { id: 4, client: "10.0.0.4:11211".into() };
    assert_eq!(machines.start("shop", 4, 2), Ok(()));
    assert_eq!(machines.stop("shop", 3, &[leaver]), Ok(()));
    let said = std::fs::read_to_string(&file).expect("commands have run");
    std::fs::remove_file(&file).expect("it is the test's");
    assert_eq!(said, "start shop 4\nstart shop 4\nstop shop 3 10.0.0.4:11211 4\n");
    let broken = Machines::Commands { start: "exit 3".into(), stop: String::new() };
    assert_eq!(broken.start("shop", 4, 1), Err("exit 3: exit status: 3".into()));
}
