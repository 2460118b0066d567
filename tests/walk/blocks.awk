# Prints the code blocks of a page as lines `NUMBER TAB LANGUAGE TAB HEADING TAB LINE`: the number in the page, the block's language
# (or -), and the nearest heading. A block in a list is moved to the left by the indentation of its fence.
BEGIN { OFS = "\t" }
/^[ ]*```/ {
    if (open) {
        open = 0
        print NR, "end", heading, ""
        next
    }
    open = 1
    match($0, /^ */)
    indent = RLENGTH
    language = substr($0, indent + 4)
    if (language == "")
        language = "-"
    next
}
open { print NR, language, heading, substr($0, indent + 1); next }
/^#/ { heading = $0; sub(/^#+ /, "", heading) }
END { if (open) { print "a block of " FILENAME " has no end" >"/dev/stderr"; exit 1 } }
