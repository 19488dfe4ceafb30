# What Doxygen would take for its own: <dir> and \x07 in comments are words, links between pages lead out of the
# reference, and a variable of std's is none of ours.
/\/\/\//s/<([a-z_]+)>/\&lt;\1\&gt;/g
/\/\/\//s/\\x/\\\\x/g
s/\[([^]]+)\]\([^)]*README\.md[^)]*\)/\1/g
/^template <typename Loader>$/{
N
/disable_sized_range/d
}
