//! A forked child has the communicator's memory and none of its threads: it is told so, instead of hanging.

mod support;

use ferronickel::{ErrorKind, RedOp};
use support::{config, in_one_thread};

#[test]
fn a_communicator_is_dead_in_a_forked_child() {
    let ranks = in_one_thread(2, &config(&[]));
    let buffers: Vec<_> = ranks.iter().map(|rank| rank.device.alloc::<i32>(4).unwrap()).collect();
    let call = |n: usize| ranks[n].communicator.all_reduce(&buffers[n], &buffers[n], RedOp::Sum, &ranks[n].stream);
    // SAFETY: the child calls what needs no other thread, and exits without running destructors
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = |error: ferronickel::Error| {
            error.kind() == ErrorKind::InvalidUsage && error.to_string().contains("was forked")
        };
        let right = call(0).is_err_and(told) && ranks[0].communicator.finalize().is_err_and(told);
        // SAFETY: ends the child at once
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: `child` is ours to wait for, `status` is valid
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child was not told");
    // and the parent goes on
    (0..2).for_each(|n| call(n).unwrap());
    ranks.iter().for_each(|rank| rank.stream.synchronize().unwrap());
}
