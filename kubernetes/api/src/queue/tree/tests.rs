use super::*;

fn below<'a>(name: &'a str, parent: &'a str) -> Place<'a> {
    Place { name, parent, cohort: "" }
}

fn quota(nominal: u64, borrow: Option<u64>, lend: Option<u64>) -> CheckedQuota {
    CheckedQuota { nominal, borrow, lend }
}

#[test]
fn queues_that_are_above_themselves_are_named_and_no_walk_is_endless() {
    let tree = Tree::new([below("a", "b"), below("b", "c"), below("c", "a"), below("d", "a"), below("e", "e")]);
    let cycle = |name: &str| tree.cycle(tree.find(name).unwrap());
    assert_eq!(cycle("a").as_deref(), Some("a is below b, b is below c, c is below a"));
    assert_eq!(cycle("c").as_deref(), Some("c is below a, a is below b, b is below c"));
    assert_eq!(cycle("d"), cycle("a"), "a queue below them");
    assert_eq!(cycle("e").as_deref(), Some("e is below e"));
    let tree = Tree::new([below("a", "none"), below("b", "a")]);
    assert_eq!((tree.cycle(0), tree.cycle(1)), (None, None));
    assert_eq!(tree.path(1).count(), 3, "its jobs, b and a: a queue that does not exist is above none");
}

#[test]
fn two_queues_differ_right_below_the_lowest_node_that_both_have() {
    let in_cohort = |name: &'static str, cohort: &'static str| Place { name, parent: "", cohort };
    let tree = Tree::new([
        in_cohort("a", "all"),
        in_cohort("b", "all"),
        below("a1", "a"),
        below("a2", "a"),
        in_cohort("other", ""),
    ]);
    let [a, b, a1, a2, other] = ["a", "b", "a1", "a2", "other"].map(|name| tree.find(name).unwrap());
    let group = |queue: usize| queue + 5;
    assert_eq!(tree.apart(a1, a2), Some((group(a1), group(a2))));
    assert_eq!(tree.apart(a1, b), Some((group(a), group(b))));
    // Jobs of a queue with others below it are beside the groups of these.
    assert_eq!(tree.apart(a, a1), Some((a, group(a1))));
    assert_eq!(tree.apart(a1, a), Some((group(a1), a)));
    assert_eq!((tree.apart(a1, other), tree.apart(a, a)), (None, None));
}

#[test]
fn amounts_that_are_added_and_removed_in_any_order_leave_nothing() {
    let tree = Tree::new([below("top", ""), below("a", "top"), below("b", "a"), below("c", "top")]);
    let quotas = [quota(2, None, None), quota(3, Some(1), Some(2)), quota(4, None, Some(0)), quota(5, Some(0), None)];
    let mut balances = Balances::new(&tree, |at| Some(quotas[at]));
    let before = format!("{balances:?}");
    for (queue, amount) in [(0, 3), (2, 9), (1, 4), (3, 5), (2, 1)] {
        balances.add(&tree, queue, amount);
    }
    for (queue, amount) in [(2, 10), (0, 1), (3, 5), (1, 4), (0, 2)] {
        balances.remove(&tree, queue, amount);
    }
    assert_eq!(format!("{balances:?}"), before);
    // The most of each queue: what it keeps, and what those around it lend.
    let most: Vec<u64> = (0..4).map(|queue| balances.potential(&tree, queue)).collect();
    assert_eq!(most, [2 + 2 + 5, 1 + 2 + 1, 4 + 1 + 2 + 1, 5]);
}

#[test]
fn a_queue_gives_back_only_where_all_below_the_exceeded_limit_borrow() {
    let tree = Tree::new([below("top", ""), below("a", "top"), below("a1", "a"), below("a2", "a"), below("b", "top")]);
    let nominal = [0, 0, 4, 4, 8];
    let mut balances = Balances::new(&tree, |at| Some(quota(nominal[at], None, None)));
    for (queue, amount) in [(2, 8), (3, 2), (4, 8)] {
        balances.add(&tree, queue, amount);
    }
    // a1 has 4 more than its own, of which a2 lends only 2.
    let over: Vec<bool> = (2..5).map(|queue| balances.is_over(&tree, queue)).collect();
    assert_eq!(over, [true, false, false]);
    assert!((2..5).all(|queue| balances.is_beyond(&tree, queue)), "the whole tree uses too much");
}

#[test]
fn shares_are_those_of_the_whole_tree_from_the_top_down() {
    let tree = Tree::new([below("top", ""), below("a", "top"), below("b", "top")]);
    let mut balances = Balances::new(&tree, |_| Some(quota(4, None, None)));
    balances.add(&tree, 1, 6);
    let one = 1_u128 << WHOLE_BITS;
    assert_eq!(balances.shares(&tree, 1), [(Some(0), one / 2), (Some(1), one / 2)]);
    assert_eq!(balances.shares(&tree, 2), [(Some(0), one / 2), (Some(2), 0)]);
    assert_eq!(balances.shares(&tree, 0), [(Some(0), one / 2), (None, 0)], "its own jobs use nothing");
}
