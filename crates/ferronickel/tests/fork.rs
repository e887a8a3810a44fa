//! A forked child has the communicator's memory and none of its threads: it is told so, instead of hanging.

mod support;

use ferronickel::{Communicator, Device, Error, ErrorKind, RedOp, UniqueId};
use support::{config, in_one_thread};

/// Whether a forked child, which does only what needs no other thread, finds all to be right within its time.
fn child_finds_right(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child exits without running destructors, and is killed by the alarm if it hangs
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the default of the signal is to end the process, at once as `_exit` does
        unsafe {
            libc::alarm(20);
            libc::_exit(i32::from(!child()));
        }
    }
    let mut status = 0;
    // SAFETY: the child is ours to wait for, `status` is valid
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status == 0
}

fn told(error: Error) -> bool {
    error.kind() == ErrorKind::InvalidUsage && error.to_string().contains("this process was forked")
}

#[test]
fn a_communicator_is_dead_in_a_forked_child() {
    let ranks = in_one_thread(2, &config(&[]));
    let buffers: Vec<_> = ranks.iter().map(|rank| rank.device.alloc::<i32>(4).unwrap()).collect();
    let call = |n: usize| ranks[n].communicator.all_reduce(&buffers[n], &buffers[n], RedOp::Sum, &ranks[n].stream);
    assert!(
        child_finds_right(|| call(0).is_err_and(told) && ranks[0].communicator.finalize().is_err_and(told)),
        "the child was not told"
    );
    // and the parent goes on
    (0..2).for_each(|n| call(n).unwrap());
    ranks.iter().for_each(|rank| rank.stream.synchronize().unwrap());
}

#[test]
fn what_was_under_way_at_the_fork_is_not_waited_for_in_the_child() {
    let ranks = in_one_thread(2, &config(&[]));
    let buffers: Vec<_> = ranks.iter().map(|rank| rank.device.alloc::<i32>(4).unwrap()).collect();
    buffers.iter().for_each(|buffer| buffer.copy_from_host(&[1; 4]).unwrap());
    let call = |n: usize| ranks[n].communicator.all_reduce(&buffers[n], &buffers[n], RedOp::Sum, &ranks[n].stream);
    // rank 1 has not called yet, so that this one cannot be done
    call(0).unwrap();
    let (stream, buffer) = (&ranks[0].stream, &buffers[0]);
    let refusals: [(&str, &dyn Fn() -> bool); 5] = [
        ("synchronize", &|| stream.synchronize().is_err_and(told)),
        ("is_idle", &|| stream.is_idle().is_err_and(told)),
        ("to_vec", &|| buffer.to_vec().is_err_and(told)),
        ("copy_to_host", &|| buffer.copy_to_host(&mut [0; 4]).is_err_and(told)),
        ("copy_from_host", &|| buffer.copy_from_host(&[7; 4]).is_err_and(told)),
    ];
    for (name, is_refused) in refusals {
        assert!(child_finds_right(is_refused), "{name} hung or did not say why");
    }
    let aborts_nothing = || {
        ranks[0].communicator.abort();
        ranks[0].communicator.async_error().is_none()
    };
    assert!(child_finds_right(aborts_nothing), "a child stopped its parent's communicator");
    call(1).unwrap();
    ranks.iter().for_each(|rank| rank.stream.synchronize().unwrap());
    assert_eq!(buffers[0].to_vec().unwrap(), [2; 4]);
}

#[test]
fn a_forked_child_makes_no_communicator() {
    let _parents = in_one_thread(2, &config(&[]));
    let devices = [Device::host(0), Device::host(1)];
    let id = UniqueId::new().unwrap();
    let refusals: [(&str, &dyn Fn() -> bool); 3] = [
        ("init_all", &|| Communicator::init_all(&devices, &config(&[])).is_err_and(told)),
        ("init_rank", &|| Communicator::init_rank(&id, 2, 0, &devices[0], &config(&[])).is_err_and(told)),
        ("UniqueId::new", &|| UniqueId::new().is_err_and(told)),
    ];
    for (name, is_refused) in refusals {
        assert!(child_finds_right(is_refused), "{name} hung or did not say why");
    }
}
