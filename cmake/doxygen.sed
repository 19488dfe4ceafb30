# Escapes text that Doxygen would interpret: <dir> and \x07 in comments are plain words. Links to READMEs would lead out of
# the reference and become text. A variable template of std is not a part of the library and is removed.
/\/\/\//s/<([a-z_]+)>/\&lt;\1\&gt;/g
/\/\/\//s/\\x/\\\\x/g
s/\[([^]]+)\]\([^)]*README\.md[^)]*\)/\1/g
/^template <typename Loader>$/{
N
/disable_sized_range/d
}
