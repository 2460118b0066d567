use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};

use larder_testkit::kernel::{GETATTR, Kernel, LOOKUP, ROOT, request};

use super::*;
use crate::errno::Errno as Answer;

/// Answers a LOOKUP once as many of them as the barrier has places are being answered. Answers other requests
/// immediately.
#[derive(Debug)]
struct Together(Arc<Barrier>);

impl Serve for Together {
    fn answer(&self, request: &Request<'_>, reply: Reply) {
        if request.operation == operation::LOOKUP {
            self.0.wait();
        }
        reply.error(Answer(libc::ENOENT));
    }
}

/// Reports each request, and answers it after a message.
#[derive(Debug)]
struct Held {
    begun: Sender<u64>,
    go_on: Mutex<Receiver<()>>,
}

impl Serve for Held {
    fn answer(&self, request: &Request<'_>, reply: Reply) {
        self.begun.send(request.unique).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        reply.data(&[]);
    }
}

/// Has its kernel send a request for each that it answers, so that it is never idle.
struct Endless(Arc<Kernel>);

impl Debug for Endless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Endless")
    }
}

impl Serve for Endless {
    fn answer(&self, _: &Request<'_>, reply: Reply) {
        reply.data(&[]);
        let (unique, ..) = self.0.answer();
        ask(&self.0, GETATTR, [unique]);
    }
}

/// Answers after a message, and reports when requests were queued.
#[derive(Debug)]
struct Queued {
    begun: Sender<()>,
    go_on: Mutex<Receiver<()>>,
    queued: Sender<Duration>,
}

impl Serve for Queued {
    fn answer(&self, _: &Request<'_>, reply: Reply) {
        self.begun.send(()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        reply.data(&[]);
    }

    fn were_queued(&self, since: Instant) {
        self.queued.send(since.elapsed()).unwrap();
    }
}

fn serve(pool: &Arc<Pool>, threads: usize, front: impl Serve) -> (Kernel, Session) {
    let (kernel, fuse) = Kernel::connect();
    let slots = Slots::open(None, threads).unwrap();
    (kernel, pool.serve(Arc::new(fuse), slots, Box::new(front)).unwrap())
}

fn ask(kernel: &Kernel, operation: u32, uniques: impl IntoIterator<Item = u64>) {
    uniques.into_iter().for_each(|unique| kernel.send(&request(operation, unique, ROOT, b"name\0")));
}

fn answers(kernel: &Kernel, count: usize) -> Vec<u64> {
    let mut answers: Vec<u64> = (0..count).map(|_| kernel.answer().0).collect();
    answers.sort_unstable();
    answers
}

/// Waits for a condition. The timeout only ends a hang.
fn until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never happens");
        std::thread::yield_now();
    }
}

#[test]
fn one_busy_connection_gets_all_of_its_threads() {
    let pool = Pool::start(8).unwrap();
    let (kernel, session) = serve(&pool, 6, Together(Arc::new(Barrier::new(6))));
    for round in 0..50 {
        let uniques = round * 12..round * 12 + 6;
        ask(&kernel, LOOKUP, uniques.clone());
        assert_eq!(answers(&kernel, 6), uniques.collect::<Vec<_>>());
    }
    drop(kernel);
    session.wait().unwrap();
}

#[test]
fn a_connection_never_has_more_threads_than_slots_and_others_are_served_meanwhile() {
    let pool = Pool::start(3).unwrap();
    let (begun, taken) = channel();
    let (go, go_on) = channel();
    let (slow, _slow) = serve(&pool, 2, Held { begun, go_on: Mutex::new(go_on) });
    let (quick, _quick) = serve(&pool, 2, Together(Arc::new(Barrier::new(1))));
    ask(&slow, GETATTR, [2, 4, 6, 8]);
    let first = [taken.recv().unwrap(), taken.recv().unwrap()];
    // The third thread serves the other connection.
    for unique in (100..150).map(|number| 2 * number) {
        ask(&quick, LOOKUP, [unique]);
        assert_eq!(answers(&quick, 1), [unique]);
    }
    assert!(taken.try_recv().is_err(), "both slots are in use");
    (0..4).for_each(|_| go.send(()).unwrap());
    assert_eq!(answers(&slow, 4), [2, 4, 6, 8]);
    let mut all = [first[0], first[1], taken.recv().unwrap(), taken.recv().unwrap()];
    all.sort_unstable();
    assert_eq!(all, [2, 4, 6, 8], "each request is answered once");
}

#[test]
fn requests_that_wait_in_the_kernel_while_all_slots_are_taken_are_reported() {
    let pool = Pool::start(3).unwrap();
    let ((begun, taken), (go, go_on), (queued, reported)) = (channel(), channel(), channel());
    let (kernel, _session) = serve(&pool, 1, Queued { begun, go_on: Mutex::new(go_on), queued });
    let hold = || {
        let began = Instant::now();
        until(|| began.elapsed() > 2 * QUEUED_LEAST);
        go.send(()).unwrap();
    };
    // No other request is there meanwhile.
    ask(&kernel, GETATTR, [2]);
    taken.recv().unwrap();
    hold();
    assert_eq!(answers(&kernel, 1), [2]);
    // Its thread waits for the next one.
    until(|| pool.shared.connections().values().all(|it| it.waiting.load(Ordering::SeqCst) > 0));
    assert!(reported.try_recv().is_err(), "nothing was queued");
    ask(&kernel, GETATTR, [4, 6]);
    taken.recv().unwrap();
    hold();
    taken.recv().unwrap();
    assert!(reported.recv().unwrap() >= 2 * QUEUED_LEAST, "the second one waited as long as the first was held");
    go.send(()).unwrap();
    assert_eq!(answers(&kernel, 2), [4, 6]);
}

#[test]
fn many_connections_need_no_thread_of_their_own() {
    let pool = Pool::start(2).unwrap();
    let connections: Vec<_> = (0..200).map(|_| serve(&pool, 16, Together(Arc::new(Barrier::new(1))))).collect();
    // All of them are busy at the same time.
    connections.iter().for_each(|(kernel, _)| ask(kernel, LOOKUP, (1..=20).map(|number| 2 * number)));
    for (kernel, _) in &connections {
        assert_eq!(answers(kernel, 20), (1..=20).map(|number| 2 * number).collect::<Vec<_>>());
    }
    for (kernel, session) in connections {
        drop(kernel);
        session.wait().unwrap();
    }
    assert!(pool.shared.connections().is_empty());
}

#[test]
fn a_connection_ends_with_its_kernel_and_reports_the_outcome() {
    let pool = Pool::start(1).unwrap();
    let (kernel, session) = serve(&pool, 1, Together(Arc::new(Barrier::new(1))));
    // A request that expects no answer, and the end of the file system.
    kernel.send(&request(operation::FORGET, 2, ROOT, &[0; 8]));
    kernel.send(&request(operation::DESTROY, 4, 0, &[]));
    assert_eq!(kernel.answer(), (4, 0, Vec::new()));
    session.wait().unwrap();
    let (kernel, session) = serve(&pool, 1, Together(Arc::new(Barrier::new(1))));
    kernel.send(b"not a request");
    assert_eq!(session.wait().unwrap_err().kind(), io::ErrorKind::InvalidData);
    // The only thread serves the next connection.
    let (kernel, _session) = serve(&pool, 1, Together(Arc::new(Barrier::new(1))));
    ask(&kernel, LOOKUP, [6]);
    assert_eq!(answers(&kernel, 1), [6]);
}

#[test]
fn a_connection_ends_while_threads_wait_for_its_requests() {
    let pool = Pool::start(2).unwrap();
    let (kernel, session) = serve(&pool, 2, Together(Arc::new(Barrier::new(2))));
    ask(&kernel, LOOKUP, [2, 4]);
    assert_eq!(answers(&kernel, 2), [2, 4]);
    // One of the two threads receives it, and nothing wakes the other one.
    kernel.send(&request(operation::DESTROY, 6, 0, &[]));
    assert_eq!(kernel.answer(), (6, 0, Vec::new()));
    session.wait().unwrap();
}

#[test]
fn a_connection_without_requests_gives_its_threads_back_and_gets_them_again() {
    let pool = Pool::start(3).unwrap();
    let (kernel, _session) = serve(&pool, 2, Together(Arc::new(Barrier::new(2))));
    for uniques in [[2, 4], [6, 8]] {
        ask(&kernel, LOOKUP, uniques);
        assert_eq!(answers(&kernel, 2), uniques);
        until(|| pool.shared.free.load(Ordering::SeqCst) == 3);
    }
}

#[test]
fn a_thread_that_waits_for_requests_leaves_for_a_connection_that_has_one() {
    let pool = Pool::start(1).unwrap();
    let connections: Vec<_> = (0..3).map(|_| serve(&pool, 2, Together(Arc::new(Barrier::new(1))))).collect();
    for unique in (1..20).map(|number| 2 * number) {
        for (kernel, _) in &connections {
            ask(kernel, LOOKUP, [unique]);
            assert_eq!(answers(kernel, 1), [unique]);
        }
    }
}

#[test]
fn a_thread_that_never_waits_leaves_for_a_connection_that_has_a_request() {
    let pool = Pool::start(2).unwrap();
    let (kernel, fuse) = Kernel::connect();
    let kernel = Arc::new(kernel);
    let front = Box::new(Endless(Arc::clone(&kernel)));
    let _endless = pool.serve(Arc::new(fuse), Slots::open(None, 2).unwrap(), front).unwrap();
    ask(&kernel, GETATTR, [2, 4]);
    until(|| pool.shared.connections()[&0u64].slots.are_all_taken());
    let (quick, _quick) = serve(&pool, 2, Together(Arc::new(Barrier::new(1))));
    for unique in (1..20).map(|number| 2 * number) {
        ask(&quick, LOOKUP, [unique]);
        assert_eq!(answers(&quick, 1), [unique]);
    }
}

#[test]
fn a_thread_that_has_served_many_requests_leaves_after_the_next_one() {
    let pool = Pool::start(1).unwrap();
    let (begun, taken) = channel();
    let (go, go_on) = channel();
    let (busy, _busy) = serve(&pool, 1, Held { begun, go_on: Mutex::new(go_on) });
    ask(&busy, GETATTR, (1..=3 * BURST).map(|number| 2 * number));
    // It has just begun its second burst.
    for _ in 0..=BURST {
        taken.recv().unwrap();
        go.send(()).unwrap();
    }
    taken.recv().unwrap();
    let (quick, _quick) = serve(&pool, 1, Together(Arc::new(Barrier::new(1))));
    ask(&quick, LOOKUP, [2]);
    until(|| pool.shared.is_short.load(Ordering::Relaxed));
    go.send(()).unwrap();
    assert_eq!(answers(&quick, 1), [2]);
    (0..2 * BURST).for_each(|_| go.send(()).unwrap());
    assert_eq!(answers(&busy, 3 * BURST as usize).len(), 3 * BURST as usize);
}

// SEMANTICS: P8
#[test]
fn a_mount_that_wants_more_threads_than_there_are_leaves_some_to_others() {
    let pool = Pool::start(4).unwrap();
    let (begun, taken) = channel();
    let (go, go_on) = channel();
    let (slow, _slow) = serve(&pool, pool.most_of_one(256), Held { begun, go_on: Mutex::new(go_on) });
    ask(&slow, GETATTR, [2, 4, 6, 8]);
    for _ in 0..3 {
        taken.recv().unwrap();
    }
    let (quick, _quick) = serve(&pool, 1, Together(Arc::new(Barrier::new(1))));
    ask(&quick, LOOKUP, [2]);
    assert_eq!(answers(&quick, 1), [2]);
    (0..4).for_each(|_| go.send(()).unwrap());
    assert_eq!(answers(&slow, 4), [2, 4, 6, 8]);
    assert_eq!([pool.most_of_one(2), Pool::start(1).unwrap().most_of_one(16)], [2, 1]);
}

#[test]
fn a_connection_whose_reads_do_not_wait_is_served_as_well() {
    let pool = Pool::start(2).unwrap();
    let (kernel, fuse) = Kernel::connect();
    rustix::fs::fcntl_setfl(&fuse, rustix::fs::OFlags::NONBLOCK).unwrap();
    let front = Box::new(Together(Arc::new(Barrier::new(2))));
    let session = pool.serve(Arc::new(fuse), Slots::open(None, 2).unwrap(), front).unwrap();
    for uniques in [[2, 4], [6, 8]] {
        ask(&kernel, LOOKUP, uniques);
        assert_eq!(answers(&kernel, 2), uniques);
    }
    drop(kernel);
    session.wait().unwrap();
}

#[test]
fn the_threads_end_with_the_pool_also_those_that_wait_for_requests_or_never_do() {
    let pool = Pool::start(5).unwrap();
    let (kernel, waiting) = serve(&pool, 2, Together(Arc::new(Barrier::new(2))));
    ask(&kernel, LOOKUP, [2, 4]);
    assert_eq!(answers(&kernel, 2), [2, 4]);
    let (busy, fuse) = Kernel::connect();
    let busy = Arc::new(busy);
    let front = Box::new(Endless(Arc::clone(&busy)));
    let endless = pool.serve(Arc::new(fuse), Slots::open(None, 1).unwrap(), front).unwrap();
    ask(&busy, GETATTR, [6]);
    until(|| pool.shared.connections()[&1u64].slots.are_all_taken());
    let shared = Arc::downgrade(&pool.shared);
    drop((waiting, endless, pool));
    until(|| shared.strong_count() == 0);
}
