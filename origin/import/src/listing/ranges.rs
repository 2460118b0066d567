//! A walk over ranges of keys, for stores whose listings can start after any key.
//!
//! The walk starts with one range of all keys. When another call could be made and no range waits for one, the range
//! with the most remaining keys, as estimated from its pages so far, is split at a guessed key. The call that lists its
//! upper part runs while the lower part continues. A guess beyond the last key costs one empty page and halves the
//! range. A few empty pages are allowed at first, and later a fraction of all calls.
//!
//! Invariant: the open ranges and the accepted pages never overlap, and together they cover all keys. A page is cut at
//! the end of its range. The keys that were cut off must match the first page of the next range.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

use larder_origin::Depth;

use super::between::Alphabet;
use super::call::{ListCall, ListError};
use crate::journal::{PageFile, PageRecord};

/// The binary logarithm of the fewest remaining pages that are worth a split: three.
const LOG_PAGES_LEAST: f64 = 1.6;
/// The number of empty pages that are always allowed: one round of calls finds where the keys end.
const WASTE_LEAST: u64 = 16;
/// Beyond that, at most one of this many calls may return an empty page.
const WASTE_SHARE: u64 = 2;
/// The number of keys per page that the alphabet is learned from.
const LEARN_KEYS: usize = 16;

/// The keys after the range's start, which identifies it, up to and including `until`.
#[derive(Debug)]
struct Range {
    until: Option<Vec<u8>>,
    in_flight: bool,
    /// True if the range was made by a split and no page of it has arrived.
    unproven: bool,
    /// The binary logarithm of the distance that the last page covered.
    log_page: Option<f64>,
}

/// The versions of keys. Both are hashed.
type Shown = HashMap<u64, u64>;

/// The ranges that are not finished.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// By their starts. `None` stands for the position before all keys.
    open: BTreeMap<Option<Vec<u8>>, Range>,
    alphabet: Alphabet,
    /// The versions of the first keys after a border, as the first of the two neighbours listed them. The other
    /// neighbour compares.
    seams: HashMap<Vec<u8>, Shown>,
    pages: u64,
    empty_pages: u64,
    known: u64,
    done: u64,
}

fn hash_of(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn version_of(file: &PageFile) -> u64 {
    match &file.version {
        larder_dataset::VersionTag::ETag(etag) => hash_of((file.size, etag)),
        larder_dataset::VersionTag::MtimeSize { mtime_ns, size } => hash_of((file.size, mtime_ns, size)),
    }
}

impl Ranges {
    pub(super) fn new() -> Self {
        let all = Range { until: None, in_flight: false, unproven: false, log_page: None };
        Self {
            open: BTreeMap::from([(None, all)]),
            alphabet: Alphabet::default(),
            seams: HashMap::new(),
            pages: 0,
            empty_pages: 0,
            known: 1,
            done: 0,
        }
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.done, self.known)
    }

    pub(super) fn requeue(&mut self) {
        self.seams.clear();
        for range in self.open.values_mut() {
            (range.in_flight, range.unproven) = (false, false);
        }
    }

    pub(super) fn next_call(&mut self) -> Option<ListCall> {
        let waiting = self.open.iter_mut().find(|(_, range)| !range.in_flight);
        let after = match waiting {
            Some((after, range)) => {
                range.in_flight = true;
                after.clone()
            }
            None => Some(self.split()?),
        };
        Some(ListCall { prefix: Vec::new(), depth: Depth::All, after })
    }

    /// Splits the range with the most remaining keys. Returns the start of its upper part.
    fn split(&mut self) -> Option<Vec<u8>> {
        let unproven = self.open.values().filter(|range| range.unproven).count() as u64;
        if self.empty_pages + unproven >= WASTE_LEAST + self.pages / WASTE_SHARE {
            return None;
        }
        let pages_left = |(after, range): (&Option<Vec<u8>>, &Range)| {
            let distance = self.alphabet.log_distance(after.as_deref().unwrap_or_default(), range.until.as_deref());
            Some((distance - range.log_page?, after.clone()))
        };
        // A range that starts at a guess may be empty. The proven range is split again instead, closer to its start.
        let proven = self.open.iter().filter(|(_, range)| !range.unproven);
        let left = proven.filter_map(pages_left).filter(|(left, _)| *left > LOG_PAGES_LEAST);
        let (_, after) = left.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
        let range = self.open.get_mut(&after)?;
        let middle = self.alphabet.between(after.as_deref().unwrap_or_default(), range.until.as_deref())?;
        let until = range.until.replace(middle.clone());
        let upper = Range { until, in_flight: true, unproven: true, log_page: None };
        self.open.insert(Some(middle.clone()), upper);
        self.known += 1;
        Some(middle)
    }

    pub(super) fn accept(&mut self, page: &mut PageRecord) -> Result<(), ListError> {
        let odd = |what| ListError::Odd { prefix: page.prefix.clone(), what };
        if !page.prefix.is_empty() || !page.recursive || !page.prefixes.is_empty() {
            return Err(odd("with prefixes to a listing without them"));
        }
        if page.files.first().is_some_and(|first| page.after.as_ref().is_some_and(|after| first.key <= *after)) {
            return Err(odd("with keys before the one to begin after"));
        }
        match page.files.windows(2).find(|pair| pair[0].key >= pair[1].key) {
            Some(pair) if pair[0].key == pair[1].key => return Err(odd("with a key twice")),
            Some(_) => return Err(odd("with keys out of order")),
            None => {}
        }
        if page.next.is_some() && page.next <= page.after {
            return Err(odd("with a page that does not advance"));
        }
        // An earlier run may have split the range at another key before it got this page.
        let (start, range) = match self.open.range(..=&page.after).next_back() {
            Some((start, range)) if range.until.is_none() || page.after < range.until => (start.clone(), range),
            _ => return Err(odd("for keys that are finished")),
        };
        let until = range.until.clone();
        let beyond = match &until {
            Some(until) => page.files.split_off(page.files.partition_point(|file| file.key <= *until)),
            None => Vec::new(),
        };
        if let Some(until) = &until {
            page.links.retain(|link| link.key <= *until);
        }
        self.compare(page, &beyond, until.as_deref())?;

        if start == page.after {
            self.open.remove(&start);
        } else if let Some(lower) = self.open.get_mut(&start) {
            lower.until.clone_from(&page.after);
            self.known += 1;
        }
        self.learn(page);
        let finished = match (&page.next, &until) {
            (None, _) => true,
            (Some(next), Some(until)) => next >= until,
            (Some(_), None) => false,
        };
        if finished {
            page.next.clone_from(&until);
            self.done += 1;
        } else {
            let log_page = self.distance_of(page);
            let rest = Range { until, in_flight: false, unproven: false, log_page };
            self.open.insert(page.next.clone(), rest);
        }
        Ok(())
    }

    /// Compares how two neighbours list the first keys after their border.
    fn compare(&mut self, page: &PageRecord, beyond: &[PageFile], until: Option<&[u8]>) -> Result<(), ListError> {
        let upper = page.after.as_deref().map(|after| (after, page.files.as_slice()));
        let reaches_end =
            until.is_some() && (!beyond.is_empty() || page.next.as_deref().is_none_or(|next| Some(next) >= until));
        let lower = until.filter(|_| reaches_end).map(|until| (until, beyond));
        for (border, files) in upper.into_iter().chain(lower) {
            if let Some(shown) = self.seams.remove(border) {
                let other = |file: &&PageFile| {
                    shown.get(&hash_of(&file.key)).is_some_and(|version| *version != version_of(file))
                };
                if let Some(changed) = files.iter().find(other) {
                    return Err(ListError::Changed { key: changed.key.clone() });
                }
            } else if self.is_border(border) {
                let shown = files.iter().map(|file| (hash_of(&file.key), version_of(file))).collect();
                self.seams.insert(border.to_vec(), shown);
            }
        }
        Ok(())
    }

    /// True if open ranges meet at this key, or met there until one of them advanced.
    fn is_border(&self, key: &[u8]) -> bool {
        let ends = self.open.values().any(|range| range.until.as_deref() == Some(key));
        ends && (self.open.contains_key(&Some(key.to_vec())) || self.seams.contains_key(key))
    }

    fn learn(&mut self, page: &PageRecord) {
        self.pages += 1;
        self.empty_pages += u64::from(page.files.is_empty());
        let step = (page.files.len() / LEARN_KEYS).max(1);
        for file in page.files.iter().step_by(step).chain(page.files.last()) {
            self.alphabet.learn(&file.key);
        }
    }

    fn distance_of(&self, page: &PageRecord) -> Option<f64> {
        let (first, last) = (page.files.first()?, page.files.last()?);
        let log_distance = self.alphabet.log_distance(&first.key, Some(&last.key));
        log_distance.is_finite().then_some(log_distance)
    }
}
