//! Scripts that pods run.

use std::collections::BTreeMap;

/// Prints what md5sum says of every file below the folder it is in.
pub const SUMS: &str = "find . -type f | sed 's|^[.]/||' | sort | xargs md5sum";

/// The checksums that md5sum printed, by path.
pub fn sums(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(|line| line.split_once("  ")).map(|(sum, path)| (path.to_owned(), sum.to_owned())).collect()
}

/// Reads all files again and again past the page cache, until `/tmp/stop` exists, and prints each wrong one. `expected`
/// are the checksums.
pub fn reader_script(volume: &str, expected: &BTreeMap<String, String>) -> String {
    let list: String = expected.iter().map(|(path, sum)| format!("{sum} {path}\\n")).collect();
    format!(
        "cd /{volume}; printf '{list}' > /tmp/list; while [ ! -e /tmp/stop ]; do while read sum path; do \
         got=$(dd if=$path iflag=direct bs=1M 2>/tmp/err | md5sum); \
         [ \"$got\" = \"$sum  -\" ] || echo WRONG $path $got $(cat /tmp/err); \
         done < /tmp/list; echo round; done; echo stopped"
    )
}
