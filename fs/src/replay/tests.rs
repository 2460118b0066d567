use std::ffi::OsStr;
use std::os::fd::AsFd;

use fuser::{INodeNo, ReplyEntry, Request};
use larder_testkit::kernel::{Kernel, LOOKUP, ROOT, init, request};

use super::*;

/// A file system that finds no name. A name that begins with `spoilt` makes its thread panic without an answer.
#[derive(Clone)]
struct Delicate;

impl Filesystem for Delicate {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name.as_encoded_bytes().starts_with(b"spoilt") {
            std::mem::forget(reply);
            panic!("on purpose");
        }
        reply.error(fuser::Errno::ENOENT);
    }
}

/// The errors that these look-ups return, in the order of their numbers.
fn errors(names: &[&str]) -> Vec<i32> {
    let (kernel, fuse) = Kernel::connect();
    let look_up = |(unique, name): (u64, &&str)| request(LOOKUP, unique, ROOT, format!("{name}\0").as_bytes());
    let requests: Vec<_> = (1..).map(|number| 2 * number).zip(names).map(look_up).collect();
    others(&Delicate, &requests, &init(), fuse.as_fd());
    let mut answers: Vec<_> = names.iter().map(|_| kernel.answer()).collect();
    answers.sort();
    let numbers: Vec<_> = answers.iter().map(|(unique, ..)| *unique).collect();
    assert_eq!(numbers, (1..=names.len() as u64).map(|number| 2 * number).collect::<Vec<_>>(), "one answer each");
    answers.into_iter().map(|(_, error, _)| -error).collect()
}

// SEMANTICS: K1
#[test]
fn a_request_that_gets_no_answer_fails_alone_and_those_behind_it_are_answered() {
    let (absent, failed) = (libc::ENOENT, libc::EIO);
    assert_eq!(errors(&["a", "spoilt", "b", "c"]), [absent, failed, absent, absent]);
    assert_eq!(errors(&["spoilt 1", "spoilt 2", "a", "spoilt 3"]), [failed, failed, absent, failed]);
    assert_eq!(errors(&["a", "b"]), [absent, absent]);
    assert!(errors(&[]).is_empty());
}
