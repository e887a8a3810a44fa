use super::*;
use crate::types::{Collective, DataType, RedOp};

fn call(count: usize) -> u64 {
    CallDescription::new(Collective::AllReduce, DataType::Float32, Some(RedOp::Sum.into()), None, count).to_bits()
}

/// The records of two processes of one machine, with one rank each.
fn two_processes() -> [Progress; 2] {
    let page = || StatusPage::new(crate::device::region::Region::shared(StatusPage::bytes(2)).unwrap(), 2);
    let names = || vec!["rank 0 (host a, pid 1)".into(), "rank 1 (host a, pid 2)".into()];
    let processes = [page(), page()].map(|page| Progress::new(page, names(), Duration::ZERO));
    let [a, b] = &processes;
    a.attach(b.page.clone(), &[1]);
    b.attach(a.page.clone(), &[0]);
    processes
}

#[test]
fn a_peer_in_another_call_is_trouble_and_one_that_is_late_is_not() {
    let progress = Progress::of_one_process(3);
    assert!(progress.enter(0, Some((1, call(10))), 0));
    progress.look_for_trouble(0, 1, call(10));
    assert!(progress.failure().is_none(), "the others have not come yet");
    assert!(progress.enter(2, Some((1, call(20))), 0));
    progress.look_for_trouble(2, 1, call(20));
    let failure = progress.failure().unwrap();
    assert_eq!(failure.kind, ErrorKind::Mismatch);
    assert_eq!(
        failure.seen,
        "in call 1 rank 0 made all_reduce(count 10, float32, sum) and rank 2 made all_reduce(count 20, float32, sum)"
    );
    assert!(progress.stopped() && !progress.enter(1, Some((1, call(10))), 0));
}

#[test]
fn a_peer_that_left_is_trouble_only_for_calls_it_will_not_make() {
    let progress = Progress::of_one_process(2);
    progress.depart(1, 2);
    // its last collective, and messages after that, are still to come
    progress.look_for_trouble(0, 2, call(1));
    assert!(progress.enter(1, Some((1, call(1))), 0));
    progress.leave(1, 1);
    progress.look_for_trouble(0, 2, call(1));
    assert!(progress.failure().is_none());
    progress.leave(1, 2);
    progress.look_for_trouble(0, 1, call(1));
    assert!(progress.failure().is_none());
    progress.look_for_trouble(0, 2, call(1));
    let failure = progress.failure().unwrap();
    assert_eq!(failure.kind, ErrorKind::Remote);
    assert!(failure.seen.starts_with("rank 1 left before call 2"), "{}", failure.seen);
}

#[test]
fn the_first_failure_stays() {
    let progress = Progress::of_one_process(1);
    let failure = |seen: &str| Failure { kind: ErrorKind::Aborted, seen: seen.into(), hint: None };
    progress.fail(failure("first"));
    progress.fail(failure("second"));
    assert_eq!(progress.failure().unwrap().seen, "first");
}

#[test]
fn processes_of_a_machine_see_each_other_and_stop_each_other() {
    let [a, b] = two_processes();
    assert!(b.enter(1, Some((1, call(20))), 0));
    assert!(a.enter(0, Some((1, call(10))), 0));
    a.look_for_trouble(0, 1, call(10));
    let failure = a.failure().unwrap();
    assert!(failure.seen.contains("rank 1 (host a, pid 2) made all_reduce(count 20"), "{}", failure.seen);
    assert!(b.stopped(), "the word reaches the other process at once");
    assert!(b.failure().is_none(), "its reason takes a message");
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(b.cause().unwrap().seen, failure.seen));
        b.fail(failure.clone());
    });
}

#[test]
fn a_stop_waits_for_those_inside_but_not_for_the_dead_and_the_silent() {
    let [a, b] = two_processes();
    assert!(a.enter(0, Some((1, call(1))), 0) && b.enter(1, Some((1, call(1))), 0));
    a.fail(Failure { kind: ErrorKind::Aborted, seen: "on purpose".into(), hint: None });
    a.leave(0, 1);
    let mut turns = 0;
    let may_wake = a.quiesce(0, || {
        turns += 1;
        if turns == 3 {
            a.lose(1, false);
        }
    });
    assert!(may_wake && turns == 3, "a silent rank may still write when it wakes");
    a.lose(1, true);
    assert!(!a.quiesce(0, || panic!("a dead rank is waited for")));
}

#[test]
fn a_report_makes_a_rank_elsewhere_known() {
    let (here, there) = (Progress::of_one_process(2), Progress::of_one_process(2));
    assert!(there.enter(1, Some((1, call(7))), 0));
    there.leave(1, 1);
    there.depart(1, 1);
    here.mirror(&there.report(1));
    assert_eq!(here.report(1), there.report(1));
    assert!(here.has_departed(1) && !here.has_departed(0));
}

#[test]
fn the_watchdog_names_those_behind_and_not_those_ahead() {
    let progress = Progress::of_one_process(4);
    for rank in [0, 1, 3] {
        assert!(progress.enter(rank, Some((1, call(5))), 0));
        progress.leave(rank, 1);
    }
    assert!(progress.enter(0, Some((2, call(6))), 0) && progress.enter(3, Some((2, call(6))), 0));
    progress.leave(3, 2);
    assert!(progress.enter(3, Some((3, call(8))), 0));
    assert_eq!(
        watch::describe(&progress, 0, Duration::from_secs(30)),
        "rank 0: call 2 all_reduce(count 6, float32, sum) has made no progress for 30 s; last finished call 1; missing: \
         rank 1 (last started call 1 all_reduce(count 5, float32, sum), last finished 1), rank 2 (has started no call)"
    );
}

#[test]
fn a_call_that_nobody_begins_is_told_once_to_who_waits_for_it() {
    let region = crate::device::region::Region::private(StatusPage::bytes(1)).unwrap();
    let patience = Duration::from_millis(200);
    let progress = Progress::new(StatusPage::new(region, 1), vec!["rank 0".into()], patience);
    let mut watch = StartWatch::default();
    let mut look_after_patience = || {
        assert_eq!(watch.look(&progress, 0), None, "too early, or said twice");
        std::thread::sleep(patience);
        watch.look(&progress, 0)
    };
    // a call that is inside looks for itself
    assert!(progress.enter(0, Some((1, 7)), 0));
    assert_eq!(look_after_patience(), None);
    progress.leave(0, 1);
    assert_eq!(look_after_patience(), None, "the time counts from the first look after that call");
    let line = look_after_patience().unwrap();
    assert!(line.starts_with("rank 0: call 2 has not begun for 0.2 s"), "{line}");
    assert_eq!(look_after_patience(), None);
}

#[test]
fn a_thread_that_panics_stops_everyone() {
    let progress = Progress::of_one_process(2);
    progress.fail_if_it_panics("the thread of the test", || ());
    assert!(!progress.stopped());
    progress.fail_if_it_panics("the thread of the test", || panic!("on purpose"));
    let failure = progress.failure().unwrap();
    assert!(progress.stopped() && failure.kind == ErrorKind::Internal);
    assert_eq!(failure.seen, "the thread of the test panicked");
}
