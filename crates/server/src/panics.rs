//! A panic ends the process, as it does in C: a worker that has lost its way must not serve on. The
//! planner alone may break: it touches nothing, and the balancer can do without its plan.

use std::panic;
use std::thread;

use crate::balancing::PLANNER;

/// From now on a panic is told, and then the process aborts, unless it is the planner's.
pub(crate) fn end_the_process() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        tell(what);
        if thread::current().name() != Some(PLANNER) {
            std::process::abort();
        }
    }));
}
