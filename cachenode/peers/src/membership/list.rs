//! Lists of nodes as text: the value of an option, or a file.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::str::FromStr;

use super::node::{MembershipError, Node, check_name, invalid};

/// The largest weight.
const WEIGHT_MOST: u32 = 1_000_000;

/// Nodes written as text: `a=10.0.0.1:9466,b=10.0.0.2:9466;weight=2;zone=z1`. Commas separate nodes, semicolons the
/// settings of one node: `weight=N` (1 to 1000000) and `zone=Z`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeList(pub Vec<Node>);

impl FromStr for NodeList {
    type Err = MembershipError;

    fn from_str(text: &str) -> Result<Self, MembershipError> {
        let nodes = text.split(',').map(|node| {
            let mut parts = node.trim().split(';');
            let first = parts.next().unwrap_or_default();
            let (name, address) = first.split_once('=').ok_or_else(|| {
                invalid(format_args!("{first:?} is not a node: write NAME=ADDRESS:PORT[;weight=N][;zone=Z],..."))
            })?;
            parse_node(name, address, parts)
        });
        Ok(Self(checked(nodes.collect::<Result<_, _>>()?)?))
    }
}

/// Parses the nodes in a file, one per line: `NAME ADDRESS:PORT [weight=N] [zone=Z]`. Ignores empty lines and
/// everything after a `#`.
pub(super) fn parse_file(text: &str) -> Result<Vec<Node>, MembershipError> {
    let mut nodes = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let address = words.next().unwrap_or_default();
        let node = parse_node(name, address, words).map_err(|error| invalid(format_args!("line {number}: {error}")))?;
        nodes.push(node);
    }
    checked(nodes)
}

fn parse_node<'a>(name: &str, address: &str, settings: impl Iterator<Item = &'a str>) -> Result<Node, MembershipError> {
    check_name("the name of a node", name)?;
    let address: SocketAddr = address.parse().map_err(|_| {
        invalid(format_args!("{name}: {address:?} is not an address: write 10.0.0.1:9466 or [fd00::1]:9466"))
    })?;
    if address.port() == 0 {
        return Err(invalid(format_args!("{name}: the port is 0")));
    }
    let mut node = Node { name: name.to_owned(), address, weight: 1, zone: String::new() };
    let mut seen = HashSet::new();
    for setting in settings {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        if !seen.insert(key) {
            return Err(invalid(format_args!("{name}: {key} is set twice")));
        }
        match key {
            "weight" => {
                let weight = value.parse().ok().filter(|weight| (1..=WEIGHT_MOST).contains(weight));
                node.weight = weight.ok_or_else(|| {
                    invalid(format_args!("{name}: the weight {value:?} is not a number from 1 to {WEIGHT_MOST}"))
                })?;
            }
            "zone" => {
                check_name("a zone", value)?;
                value.clone_into(&mut node.zone);
            }
            _ => return Err(invalid(format_args!("{name}: unknown setting {setting:?}: write weight=N or zone=Z"))),
        }
    }
    Ok(node)
}

/// Sorts the nodes by name. Rejects an empty list and duplicate names or addresses.
fn checked(mut nodes: Vec<Node>) -> Result<Vec<Node>, MembershipError> {
    if nodes.is_empty() {
        return Err(invalid("the list has no node"));
    }
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = nodes.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(invalid(format_args!("the node {} is listed twice", pair[0].name)));
    }
    let mut addresses = HashSet::new();
    if let Some(node) = nodes.iter().find(|node| !addresses.insert(node.address)) {
        return Err(invalid(format_args!("two nodes have the address {}", node.address)));
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, address: &str, weight: u32, zone: &str) -> Node {
        Node { name: name.to_owned(), address: address.parse().unwrap(), weight, zone: zone.to_owned() }
    }

    #[test]
    fn a_list_is_read_and_sorted() {
        let list: NodeList = "b=10.0.0.2:9466;weight=2;zone=z1, a=[fd00::1]:1".parse().unwrap();
        assert_eq!(list.0, [node("a", "[fd00::1]:1", 1, ""), node("b", "10.0.0.2:9466", 2, "z1")]);
    }

    #[test]
    fn an_invalid_list_of_nodes_names_the_mistake() {
        for (text, says) in [
            ("", "NAME=ADDRESS"),
            ("a", "NAME=ADDRESS"),
            ("=1.1.1.1:1", "name of a node"),
            ("ä=1.1.1.1:1", "name of a node"),
            ("a=host:1", "not an address"),
            ("a=1.1.1.1", "not an address"),
            ("a=1.1.1.1:0", "port is 0"),
            ("a=1.1.1.1:1;weight=0", "weight"),
            ("a=1.1.1.1:1;weight=x", "weight"),
            ("a=1.1.1.1:1;weight=1;weight=2", "twice"),
            ("a=1.1.1.1:1;zone=", "zone"),
            ("a=1.1.1.1:1;color=red", "color=red"),
            ("a=1.1.1.1:1,", "NAME=ADDRESS"),
            ("a=1.1.1.1:1,a=1.1.1.2:1", "twice"),
            ("a=1.1.1.1:1,b=1.1.1.1:1", "two nodes"),
        ] {
            let error = text.parse::<NodeList>().expect_err(text).to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_file_is_read_and_its_errors_name_the_line() {
        let nodes = parse_file("# nodes\n\n b 10.0.0.2:2 zone=z weight=3 # the big one\na 10.0.0.1:1\n").unwrap();
        assert_eq!(nodes, [node("a", "10.0.0.1:1", 1, ""), node("b", "10.0.0.2:2", 3, "z")]);
        let error = parse_file("a 10.0.0.1:1\nb nowhere\n").unwrap_err().to_string();
        assert!(error.starts_with("line 2: b:"), "{error}");
        assert!(parse_file("# none\n").is_err());
    }
}
